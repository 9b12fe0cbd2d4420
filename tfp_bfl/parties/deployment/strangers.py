"""A check that a server and a folder belong to one federation, since FLARE reports a foreign server as a
missing one.
"""

from __future__ import annotations

import pathlib
import socket
import ssl

_SECONDS = 5.0
# The first bytes of HTTP/2, which a server of gRPC answers: in TLS 1.3 it reads a client's certificate when that client
# takes the connection for made.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def strangers(startup: pathlib.Path, host: str, port: int) -> str:
    """Return why a server and a folder do not trust each other, in a sentence; "" where they do or nothing is known.

    Args:
      startup: the folder of certificates.
      host, port: of the server, which need not be there.
    """
    there = f"The server at {host}:{port}"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.check_hostname = False  # which FLARE does, by a name that need not be the host's
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    met, answered = False, b""
    try:
        with socket.create_connection((host, port), _SECONDS) as plain, context.wrap_socket(plain) as connection:
            met = True
            connection.sendall(_GREETING)
            answered = connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{there} is of another federation than this folder ({error.verify_message}): ask for a folder by whoever "
            "made the server's, with the same authority."
        )
    except ssl.SSLError as error:
        if not met and "ALERT" not in str(error.reason):
            return f"{there} does not speak TLS as a server of tfp-bfl does: is it another's port?"
    except OSError:
        if not met:
            return ""
    if answered:
        return ""
    return (
        f"{there} does not take this folder's certificate, which another authority made or which is no longer valid: "
        "ask for a folder by whoever made the server's."
    )
