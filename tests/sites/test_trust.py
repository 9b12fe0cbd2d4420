"""Folders and servers of two federations: the error names the one that does not belong to the federation."""

import contextlib
import socket
import ssl
import threading

import pytest

from tests.certificates import certify
from tfp_bfl.sites.deployment.trust import trust_failure


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Return folders of two authorities, each with certificates of a server and a site; and a folder that trusts one
    and has a certificate of the other.
    """
    folder = tmp_path_factory.mktemp("kits")
    for federation in ("ours", "theirs"):
        certify(folder / federation, ["127.0.0.1", "north"])
    mixed = folder / "mixed" / "startup"
    mixed.mkdir(parents=True)
    for name in ("client.crt", "client.key"):
        (mixed / name).write_bytes((folder / "theirs" / "north" / "startup" / name).read_bytes())
    (mixed / "rootCA.pem").write_bytes((folder / "ours" / "north" / "startup" / "rootCA.pem").read_bytes())
    return folder


@contextlib.contextmanager
def listening(answer):
    """Listen on a port, and give its connections to `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with contextlib.suppress(OSError), connection:
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@contextlib.contextmanager
def mutual(startup):
    """Run a server that requires a certificate of its authority, as FLARE's does."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.verify_mode = ssl.CERT_REQUIRED

    def answer(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(secure.recv(9))

    with listening(answer) as port:
        yield port


def test_the_error_names_a_server_or_folder_of_another_federation(kits):
    with mutual(kits / "ours" / "127.0.0.1" / "startup") as port:
        asked = lambda kit: trust_failure(kits / kit / "startup", "127.0.0.1", port)
        assert asked("ours/north") == ""
        assert f"The server at 127.0.0.1:{port} belongs to another federation than this folder" in asked("theirs/north")
        assert "rejects this folder's certificate, which is from another authority" in asked("mixed")
        assert asked("ours/north") == ""


def test_an_absent_server_is_no_fault_of_trust(kits):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = kits / "ours" / "north" / "startup"
    assert trust_failure(own, "127.0.0.1", port) == ""
    assert trust_failure(own, "no.such.host.invalid", port) == ""


def test_another_service_at_the_port_is_named(kits):
    with listening(lambda connection: connection.sendall(b"220 mail.example.org ESMTP\r\n")) as port:
        assert "does not speak TLS" in trust_failure(kits / "ours" / "north" / "startup", "127.0.0.1", port)
