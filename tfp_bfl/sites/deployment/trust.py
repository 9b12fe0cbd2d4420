"""Check that a server and a folder belong to one federation: FLARE reports the server of another one as missing."""

from __future__ import annotations

import pathlib
import socket
import ssl

_SECONDS = 5.0
# The first bytes of HTTP/2, which a gRPC server answers. In TLS 1.3 the client considers the connection established
# before the server has verified the client's certificate; the answer shows that it has.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def trust_failure(startup: pathlib.Path, host: str, port: int) -> str:
    """Return the reason why a server and a folder do not trust each other, in a sentence; "" if none is known.

    Args:
      startup: folder of certificates.
      host, port: address of the server, which need not run.
    """
    server = f"The server at {host}:{port}"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.check_hostname = False  # FLARE checks the name, which may differ from the host's.
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    connected, answered = False, b""
    try:
        with socket.create_connection((host, port), _SECONDS) as plain, context.wrap_socket(plain) as connection:
            connected = True
            connection.sendall(_GREETING)
            answered = connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{server} belongs to another federation than this folder ({error.verify_message}): use a folder from the "
            "authority of the server."
        )
    except ssl.SSLError as error:
        if not connected and "ALERT" not in str(error.reason):
            return f"{server} does not speak TLS like a server of tfp-bfl: is it the port of another program?"
    except OSError:
        if not connected:
            return ""
    if answered:
        return ""
    return (
        f"{server} rejects this folder's certificate, which is from another authority or no longer valid: use a folder "
        "from the authority of the server."
    )
