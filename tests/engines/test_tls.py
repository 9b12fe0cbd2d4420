"""Workers behind a proxy that encrypts, and asks who we are: TFF's worker has no such thing itself."""

import contextlib
import socket
import ssl
import threading

import pytest

from tests.certificates import certify
from tfp_bfl import federated
from tfp_bfl.engines.tff import Tls, remote_workers
from tfp_bfl.errors import InvalidArgument, WorkerError

pytestmark = pytest.mark.deep(after="tests/engines/test_workers.py")

pytest.importorskip("tensorflow_federated")

from tests.federated.test_restarts import CLIENTS, build  # noqa: E402
from tests.kit import assert_same  # noqa: E402
from tfp_bfl.engines.tff.workers import Worker  # noqa: E402


def reach(address):
    if address.startswith("unix:"):
        found = socket.socket(socket.AF_UNIX)
        found.connect(address.removeprefix("unix:"))
        return found
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def pump(source, sink):
    with contextlib.suppress(OSError):
        while chunk := source.recv(2**16):
            sink.sendall(chunk)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(startup, worker):
    """A port that takes TLS of whom the authority knows, and forwards it in the clear."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.load_verify_locations(startup / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                threading.Thread(target=forward, args=(raw,), daemon=True).start()

    def forward(raw):
        with contextlib.suppress(OSError):
            inside = context.wrap_socket(raw, server_side=True)
            outside = reach(worker)
            for pair in ((inside, outside), (outside, inside)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"localhost:{listener.getsockname()[1]}"
    finally:
        listener.close()


def tls_of(folder, name):
    startup = folder / name / "startup"
    return Tls(startup / "rootCA.pem", startup / "client.crt", startup / "client.key")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    ours, others = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("others")
    certify(ours, ["localhost", "driver"])
    certify(others, ["driver"])
    return ours, others


def test_a_run_behind_tls_is_the_same_and_unknown_certificates_are_refused(folders):
    ours, others = folders
    worker = Worker.start(2)
    try:
        run = lambda runtime: federated.simulate(build(), CLIENTS, 2, seed=2, runtime=runtime)
        with remote_workers([worker.address], 2) as runtime:
            wanted = run(runtime)
        with proxy(ours / "localhost" / "startup", worker.address) as address:
            with remote_workers([address], 2, tls=tls_of(ours, "driver")) as runtime:
                assert_same(run(runtime).state, wanted.state)
            mine = tls_of(ours, "driver")
            for tls in (None, Tls(mine.authority), tls_of(others, "driver")):
                refused = pytest.raises(WorkerError, match=f"No worker answered at {address}")
                with refused, remote_workers([address], 2, connect_seconds=2, tls=tls):
                    pass
    finally:
        worker.stop()


def test_files_that_are_not_there(folders, tmp_path):
    mine = tls_of(folders[0], "driver")
    for tls, message in (
        (mine._replace(authority=tmp_path / "none.pem"), "none.pem: No such file"),
        (mine._replace(key=None), "a certificate or a key alone"),
    ):
        refused = pytest.raises(InvalidArgument, match=message)
        with refused, remote_workers(["localhost:1"], tls=tls):
            pass
