"""Keys that two sites share and the server has not: X25519, each half signed with the site's certificate."""

from __future__ import annotations

import base64
import hashlib
import hmac
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

from tfp_bfl.errors import InvalidArgument

_CERTIFICATE, _KEY, _AUTHORITY = "client.crt", "client.key", "rootCA.pem"
_SIGNED = b"tfp_bfl, half of the keys that mask what a party sends: "


def offer(startup: pathlib.Path, secret: bytes) -> Optional[dict[str, str]]:
    """Return a site's half, for all others: its public key, its certificate and the signature, as text; None
    without a certificate.
    """
    if not (startup / _CERTIFICATE).exists():
        return None
    from cryptography.hazmat.primitives import serialization

    key: Any = serialization.load_pem_private_key((startup / _KEY).read_bytes(), None)
    public = _half(secret).public_key().public_bytes_raw()
    certificate = (startup / _CERTIFICATE).read_text(encoding="ascii")
    signature = key.sign(_SIGNED + public, *_padding())
    return {"public": _text(public), "certificate": certificate, "signature": _text(signature)}


def agree(startup: pathlib.Path, secret: bytes, name: str, offers: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the keys that a site shares with the others, by their names.

    Args:
      startup: its folder of certificates.
      secret: its own.
      name: its own.
      offers: name -> what that site offers, as the server passed it on.

    Raises:
      InvalidArgument: an offer is not signed by whom it is of, by no site whom the authority knows, or is another's
        too; or the name is another's.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    authority = x509.load_pem_x509_certificate((startup / _AUTHORITY).read_bytes())
    own_half = _text(_half(secret).public_key().public_bytes_raw())
    mine = x509.load_pem_x509_certificate((startup / _CERTIFICATE).read_bytes())
    if _named(mine, x509.NameOID.COMMON_NAME) != name or (offers.get(name) or {}).get("public") != own_half:
        raise InvalidArgument(f"The server calls it {name}, which its certificate or its key does not.")
    if len({str((offer or {}).get("public")) for offer in offers.values()}) < len(offers):
        raise InvalidArgument(
            "Two sites offer the same half of a key: one of them is not the site that it claims to be."
        )
    keys = {}
    for other, offer in offers.items():
        if other == name:
            continue
        try:
            certificate = x509.load_pem_x509_certificate(offer["certificate"].encode())
            certificate.verify_directly_issued_by(authority)
            public = base64.b64decode(offer["public"], validate=True)
            signature = base64.b64decode(offer["signature"], validate=True)
            own: Any = certificate.public_key()
            own.verify(signature, _SIGNED + public, *_padding())
            # The server and the administrator have certificates too, of an organisation that no party is of.
            names = (x509.NameOID.COMMON_NAME, x509.NameOID.ORGANIZATION_NAME)
            if any(_named(certificate, kind) != other for kind in names):
                raise ValueError("the certificate belongs to another site, or to no site")
            shared = _half(secret).exchange(X25519PublicKey.from_public_bytes(public))
        except Exception:  # Whatever a stranger's bytes make of the parsers.
            raise InvalidArgument(f"What is said to be the key of {other} is not signed by {other}.") from None
        between = " ".join(sorted((name, other))).encode()
        keys[other] = HKDF(SHA256(), 32, salt=None, info=b"tfp_bfl masks between " + between).derive(shared)
    return keys


def _named(certificate: Any, kind: Any) -> str:
    (found,) = certificate.subject.get_attributes_for_oid(kind)
    return str(found.value)


def _half(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(hmac.new(secret, b"masks", hashlib.sha256).digest())


def _padding() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.hashes import SHA256

    return padding.PSS(padding.MGF1(SHA256()), padding.PSS.MAX_LENGTH), SHA256()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
