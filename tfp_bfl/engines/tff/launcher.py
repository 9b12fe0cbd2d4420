"""The start of a worker that ends with its parent process, in a network of its own if asked to. Run as a script:

    python -I -S launcher.py PARENT SOCKET PORT PROGRAM [ARGUMENT ...]

with the process id of who starts it, and the path of the socket through which the worker is reached, "" for none. Not a
`preexec_fn`, which would run Python in a forked copy of a process with threads, and can deadlock; `setpriv` and
`unshare` are not on every machine. It imports the standard library alone and costs some 20 ms.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import threading

# The status with which it ends where the system allows no network of its own.
NO_NETWORK = 97
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_PARENT_DEATH = 1
_SET_FLAGS, _UP = 0x8914, 1
_CHUNK_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def main(parent: int, path: str, port: int, *command: str) -> None:
    """Replace this process by the command, in a separate network if a `path` is given; it ends with `parent`."""
    if path:
        try:
            _enter_network()
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()
        except OSError as error:
            print(f"No network of its own: {error}.", flush=True)
            os._exit(NO_NETWORK)
    _die_with(parent, signal.SIGKILL)
    if path:
        worker = os.getpid()
        if os.fork() == 0:
            _die_with(worker, signal.SIGTERM)
            _relay(listener, path, port)
        listener.close()
    os.execv(command[0], command)


def _die_with(parent: int, number: int) -> None:
    _libc.prctl(_PARENT_DEATH, number, 0, 0, 0)
    if os.getppid() != parent:  # No signal comes if the parent died before.
        os._exit(1)


def _enter_network() -> None:
    """Leave the machine's network for one with nothing but a loopback interface. Raises OSError if not allowed."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_NETWORK):  # Allowed to administrators; to others in a namespace where they are one.
        if _libc.unshare(_NEW_USER | _NEW_NETWORK):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        for name, text in {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))


def _relay(listener: socket.socket, path: str, port: int) -> None:
    """Carry the bytes of each connection to the worker's port and back, until the worker ends."""

    def end(*_: object) -> None:
        for remove, name in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
            with contextlib.suppress(OSError):
                remove(name)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:  # It does not listen yet: the caller tries again.
            near.close()
            continue
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            sink.sendall(buffer[:count])
    for end in (source, sink):  # gRPC never closes one direction alone.
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
