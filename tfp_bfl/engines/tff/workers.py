"""TFF's worker processes: started, watched and ended here, so that none outlives the program that uses it.

TFF's C++ runtime is a gRPC server, `worker_binary`. TFF's own default context leaves it running after every
ordinary exit. A `Worker` ends with `stop()`, at the interpreter's exit, and with its parent by any signal.

The server listens on every network interface, without authentication or encryption. So it gets a network of its own
where the system allows that, with a socket in front that only its owner can reach.
"""

import atexit
import contextlib
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, NamedTuple

from tfp_bfl.engines.tff import launcher
from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.errors import InvalidArgument, WorkerError

logger = logging.getLogger(__name__)

_PORT_ATTEMPTS = 5
_STOP_SECONDS = 5.0
_LOG_TAIL_BYTES = 4000
# In a network of its own, where no other program has it.
_OWN_PORT = 10000
_MOST_SOCKET_PATH = 100


def worker_path() -> str:
    """Return the path of the worker binary that the installed TFF brings.

    To serve other machines, run it there: `worker_binary --port=8000 --max_concurrent_computation_calls=8`.
    """
    return str(Path(str(require_tff().__file__)).parent / "data" / "worker_binary")


class Worker:
    """One worker process on this machine and the gRPC channel to it. Made by `Worker.start`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes], address: str, folder: str = "") -> None:
        self._process = process
        self._log = log
        self._folder = folder
        self._owner = os.getpid()
        self._silent_seconds = 0.0
        self.address = address
        self.channel = self.open_channel()
        _live.add(self)

    @classmethod
    def start(
        cls,
        max_concurrent_calls: int,
        intra_op_threads: int | None = None,
        inter_op_threads: int | None = None,
        startup_seconds: float = 60.0,
        binary: str | None = None,
        own_network: bool = True,
    ) -> "Worker":
        """Start a worker, of `binary` or the one that TFF brings, and wait until it answers.

        Other arguments are those of `local_workers`; None leaves numbers of threads to TensorFlow. The WorkerError of
        one that ended or did not answer in time has the end of its log.
        """
        binary = binary or worker_path()
        if not os.access(binary, os.X_OK):
            raise WorkerError(f"No program {binary} can run here: TFF brings one for Linux x86-64.")
        threads = {"TF_NUM_INTRAOP_THREADS": intra_op_threads, "TF_NUM_INTEROP_THREADS": inter_op_threads}
        given = {name: str(number) for name, number in threads.items() if number is not None}
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **given}
        # glibc's heaps, of which it otherwise makes eight a core: cohorts of changing sizes left memory behind in each.
        environment.setdefault("MALLOC_ARENA_MAX", str(max(4, 2 * max_concurrent_calls)))
        deadline = time.monotonic() + startup_seconds
        attempts = _PORT_ATTEMPTS
        own_network = own_network and not _is_refused
        while True:
            attempts -= 1
            with contextlib.ExitStack() as stack:
                folder = _make_folder() if own_network else ""
                port = _OWN_PORT if folder else stack.enter_context(_reserve_port()).getsockname()[1]
                path = os.path.join(folder, "worker") if folder else ""
                flags = [f"--port={port}", f"--max_concurrent_computation_calls={max_concurrent_calls}"]
                launched = _launch([path, str(port), binary, *flags], environment)
                worker = cls(*launched, f"unix:{path}" if folder else f"127.0.0.1:{port}", folder)
                try:
                    if worker._wait_until_ready(deadline, startup_seconds):
                        return worker
                    error = worker._how_it_ended()
                    code = worker._process.returncode
                    # The server ends with status 0 where it can't have its port.
                    taken = code == 0 or "already in use" in worker.log_tail()
                    refused = bool(folder) and code == launcher.NO_NETWORK
                    if refused:
                        _tell_who_can_use_it(worker.log_tail())
                except BaseException:
                    worker.stop()
                    raise
                worker.stop()
            own_network = own_network and not refused
            if not (taken or refused) or attempts == 0:
                raise error

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def open_channel(self) -> Any:
        """Open another channel to the worker."""
        return open_channel(self.address, local=True)

    def give_up(self, seconds: float) -> None:
        """End a process that has not answered for `seconds`; waiting callers get an error."""
        self._silent_seconds = seconds
        _signal_group(self._process, signal.SIGKILL)

    def check(self) -> None:
        """Raise WorkerError, with how it ended and the end of its log, if the process does not run."""
        if not self.is_alive:
            raise self._how_it_ended()

    def log_tail(self) -> str:
        """Return the end of what the worker has printed."""
        # The worker writes at the offset that both processes share, so this must not move it.
        if self._log.closed:
            return "(stopped)"
        start = max(0, os.fstat(self._log.fileno()).st_size - _LOG_TAIL_BYTES)
        text = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, start).decode(errors="replace").strip()
        return text or "(an empty log)"

    def memory_bytes(self) -> int:
        """Return the memory that the process holds now (its resident set)."""
        return self._memory("VmRSS:")

    def peak_memory_bytes(self) -> int:
        """Return the most memory that the process has held at once."""
        return self._memory("VmHWM:")

    def stop(self) -> None:
        """End the process and wait for its end. May be called again, and from an interrupted call."""
        # A forked copy of the owner must not end its parent's worker.
        if self._log.closed or os.getpid() != self._owner:
            return
        try:
            # First: it cancels calls in flight; their threads would otherwise wait for the answer.
            self.channel.close()
            _signal_group(self._process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        finally:
            _signal_group(self._process, signal.SIGKILL)
            self._process.wait()
            self._log.close()
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            _live.discard(self)

    def _wait_until_ready(self, deadline: float, startup_seconds: float) -> bool:
        """Return True once the worker answers, False if it has ended."""
        while self.is_alive:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WorkerError(
                    f"The worker did not answer within startup_seconds={startup_seconds:g}; "
                    f"allow more or fix what its log says:\n{self.log_tail()}"
                )
            if is_ready(self.channel, min(0.1, left)):
                return True
        return False

    def _memory(self, field: str) -> int:
        try:
            return int(Path(f"/proc/{self.pid}/status").read_text().split(field)[1].split()[0]) * 1024
        except (OSError, IndexError) as error:  # What waits to be reaped has no memory.
            raise WorkerError(f"The worker process {self.pid} has ended; ask before it stops.") from error

    def _how_it_ended(self) -> WorkerError:
        code = self._process.returncode
        how = f"with status {code}" if code >= 0 else f"by signal {signal.Signals(-code).name}"
        advice = "fix what its log says"
        if self._silent_seconds:
            return WorkerError(
                f"The worker process {self.pid} did not answer for {self._silent_seconds:g} s (stopped, swapped out or "
                "hung) and was ended; give the machine more memory, or heartbeat_seconds a larger number."
            )
        if code == -signal.SIGKILL:
            advice = "if the machine's memory ran out, allow fewer concurrent calls"
        return WorkerError(f"The worker process {self.pid} ended {how}; {advice}:\n{self.log_tail()}")


class Tls(NamedTuple):
    """The encryption and identity of a connection; TFF's worker has neither, but a proxy before it may.

    `authority` is the file of the certificate that signed the proxy's, PEM; others are ours, which it may ask for.
    """

    authority: str | os.PathLike[str]
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def read(self) -> Any:
        """Return the `grpc.ChannelCredentials`."""
        import grpc

        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("Of tls there is a certificate or a key alone: give both, or none.")
        try:
            root, key, certificate = (x and Path(x).read_bytes() for x in (self.authority, self.key, self.certificate))
        except OSError as error:
            raise InvalidArgument(f"A file of tls can't be read, {error.filename}: {error.strerror}.") from None
        return grpc.ssl_channel_credentials(root, key, certificate)


def open_channel(address: str, local: bool, tls: Tls | None = None) -> Any:
    """Return a `grpc.Channel` to "host:port" for messages of any size; `local` goes round any HTTP proxy."""
    require_tff()
    import grpc

    options = {
        "grpc.max_send_message_length": -1,
        "grpc.max_receive_message_length": -1,
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.min_reconnect_backoff_ms": 50,
        "grpc.max_reconnect_backoff_ms": 1000,
        # Channels otherwise share connections by address, and with them the failures of an earlier worker.
        "grpc.use_local_subchannel_pool": 1,
    }
    if local:
        options["grpc.enable_http_proxy"] = 0
    if tls is not None:
        return grpc.secure_channel(address, tls.read(), list(options.items()))
    return grpc.insecure_channel(address, list(options.items()))


def is_ready(channel: Any, seconds: float) -> bool:
    """Return whether a gRPC server at the other end of a channel answers within so many seconds."""
    import grpc

    # Any answer will do. gRPC's own watch on a channel is a thread that fails loudly when the channel closes.
    try:
        channel.unary_unary("/tfp_bfl/Ready")(b"", timeout=seconds, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.UNIMPLEMENTED
    return True


def _make_folder() -> str:
    """Return a new folder that only this user can enter, with a path short enough for that of a socket in it."""
    folder = tempfile.mkdtemp(prefix="tfp_bfl-")
    if len(folder) < _MOST_SOCKET_PATH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="tfp_bfl-", dir="/tmp")


def _tell_who_can_use_it(reason: str) -> None:
    global _is_refused
    _is_refused = True
    logger.warning(
        "Workers listen on every network interface, and whoever reaches their ports, other users of this machine too, "
        "can run computations as this user: the system allows them no network of their own (%s). docs/security.md says "
        "how to fence them.",
        reason.rstrip("."),
    )


def _reserve_port() -> socket.socket:
    """Return a socket bound to a free port, which the worker may share and nobody else can be given."""
    # gRPC listens with SO_REUSEPORT: two workers with the same port would silently share their callers.
    dual = socket.has_dualstack_ipv6()
    reservation = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if dual:
        reservation.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    reservation.bind(("", 0))
    return reservation


class _Starter:
    """Starts processes on a thread that lives as long as this process.

    The parent-death signal is sent when the *thread* that forked ends; a caller's thread may end at any time.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="tfp_bfl-worker-starter", daemon=True).start()

    def popen(self, arguments: list[str], **options: object) -> "subprocess.Popen[bytes]":
        future: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((future, arguments, options))
        try:
            return future.result()
        except BaseException:  # An interrupt while it starts: nobody else would know the process.
            future.add_done_callback(_kill_started)
            raise

    def _serve(self) -> None:
        while True:
            future, arguments, options = self._requests.get()
            try:
                future.set_result(subprocess.Popen(arguments, **options))
            except BaseException as error:
                future.set_exception(error)


_live: set[Worker] = set()
# Whether the system has refused a worker a network of its own.
_is_refused = False
_starter: _Starter | None = None


def _launch(command: list[str], environment: dict[str, str]) -> tuple["subprocess.Popen[bytes]", IO[bytes]]:
    """Start a command that dies with this process; return it and its log, a nameless file."""
    global _starter
    if _starter is None or _starter.owner != os.getpid():  # Threads don't survive a fork.
        _starter = _Starter()
        atexit.register(_stop_all)  # Only now: what is registered last runs first, and TFF is loaded.
    log = tempfile.TemporaryFile()  # noqa: SIM115  (`Worker.stop` closes it)
    process = _starter.popen(
        [sys.executable, "-I", "-S", str(launcher.__file__), str(os.getpid()), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,  # Never our own: a pipe that a worker holds keeps its readers waiting.
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for us; we stop the worker.
    )
    return process, log


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _kill_started(started: "Future[subprocess.Popen[bytes]]") -> None:
    if started.exception() is None:
        _signal_group(started.result(), signal.SIGKILL)


def _stop_all() -> None:
    for worker in list(_live):
        worker.stop()
