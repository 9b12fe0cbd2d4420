"""Pairwise secret keys of sites, unknown to the server: X25519, public keys signed with the sites' certificates."""

import base64
import hashlib
import hmac
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import Later

_PRIMITIVES = "cryptography.hazmat.primitives"
x509, hashes = Later("cryptography.x509"), Later(f"{_PRIMITIVES}.hashes")
serialization, hkdf = Later(f"{_PRIMITIVES}.serialization"), Later(f"{_PRIMITIVES}.kdf.hkdf")
x25519, padding = Later(f"{_PRIMITIVES}.asymmetric.x25519"), Later(f"{_PRIMITIVES}.asymmetric.padding")
# Key of the offer in the description of a site.
OFFER = "offer"
_CERTIFICATE, _KEY, _AUTHORITY = "client.crt", "client.key", "rootCA.pem"
_ALIKE = "Two sites offer the same public key: one of them is not the site that it claims to be."
_SIGNED = b"tfp_bfl, half of the keys that mask what a party sends: "


def offer(startup: pathlib.Path, secret: bytes) -> dict[str, str] | None:
    """Return a site's public key, certificate and signature for the other sites, as text; None without certificate."""
    if not (startup / _CERTIFICATE).exists():
        return None
    key = serialization.load_pem_private_key((startup / _KEY).read_bytes(), None)
    public = _private_key(secret).public_key().public_bytes_raw()
    certificate = (startup / _CERTIFICATE).read_text(encoding="ascii")
    signature = key.sign(_SIGNED + public, *_padding())
    return {"public": _text(public), "certificate": certificate, "signature": _text(signature)}


def not_signed(site: str) -> str:
    """Return the refusal of a site that received an offer which the named site has not signed."""
    return f"The key offered as that of {site} is not signed by {site}."


def false_keys(refusals: Mapping[str, str], sites: Collection[str]) -> dict[str, str]:
    """Return the sites whose key most of the other sites refuse, with this reason: they are left out, not the others.

    `refusals` has the reasons of the sites that refuse a run, of all its `sites`.
    """
    counts = {site: [*refusals.values()].count(not_signed(site)) for site in sites}
    return {site: not_signed(site) for site, count in counts.items() if 2 * count > len(sites) - 1}


def _alike(offers: Mapping[str, Any]) -> dict[str, str]:
    """Return the sites that offer the public key of another one, with the reason."""
    public = {site: str((offer or {}).get("public")) for site, offer in offers.items()}
    every = [*public.values()]
    return {site: _ALIKE for site, key in public.items() if every.count(key) > 1}


def unusable(offers: Mapping[str, Any]) -> dict[str, str]:
    """Return the sites that can't mask their messages by their offers, with the reasons; signatures aside."""
    without = "It can't mask its messages: its folder startup has no certificate, as `tfp-bfl deploy init` makes it."
    parts = ("public", "certificate", "signature")
    is_offer = lambda x: isinstance(x, Mapping) and all(isinstance(x.get(part), str) for part in parts)
    reasons = {site: without for site, offer in offers.items() if not is_offer(offer)}
    return {**reasons, **_alike({site: offer for site, offer in offers.items() if site not in reasons})}


def agree(startup: pathlib.Path, secret: bytes, name: str, offers: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the pairwise keys of a site with the other sites, by their names, from the `offers` of the server.

    Each must be signed by its site, with a certificate of the authority, and have a public key of its own; `name` must
    be the name in the site's certificate.
    """
    authority = x509.load_pem_x509_certificate((startup / _AUTHORITY).read_bytes())
    own_public = _text(_private_key(secret).public_key().public_bytes_raw())
    mine = x509.load_pem_x509_certificate((startup / _CERTIFICATE).read_bytes())
    if _named(mine, x509.NameOID.COMMON_NAME) != name or (offers.get(name) or {}).get("public") != own_public:
        raise InvalidArgument(
            f"The server gives this site the name or key of {name}, which differ from its certificate or its own key."
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
            certificate.public_key().verify(signature, _SIGNED + public, *_padding())
            # The certificates of the server and the administrator have the organisation of no site.
            names = (x509.NameOID.COMMON_NAME, x509.NameOID.ORGANIZATION_NAME)
            if any(_named(certificate, kind) != other for kind in names):
                raise ValueError("the certificate belongs to another site, or to no site")
            shared = _private_key(secret).exchange(x25519.X25519PublicKey.from_public_bytes(public))
        except Exception:  # Parsers of untrusted bytes raise many types.
            raise InvalidArgument(not_signed(other)) from None
        between = " ".join(sorted((name, other))).encode()
        keys[other] = hkdf.HKDF(hashes.SHA256(), 32, salt=None, info=b"tfp_bfl masks between " + between).derive(shared)
    if _alike(offers):  # Each is signed: a copy without a signature is the fault of one site.
        raise InvalidArgument(_ALIKE)
    return keys


def _named(certificate: Any, kind: Any) -> str:
    (attribute,) = certificate.subject.get_attributes_for_oid(kind)
    return str(attribute.value)


def _private_key(secret: bytes) -> Any:
    return x25519.X25519PrivateKey.from_private_bytes(hmac.new(secret, b"masks", hashlib.sha256).digest())


def _padding() -> tuple[Any, Any]:
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH), hashes.SHA256()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
