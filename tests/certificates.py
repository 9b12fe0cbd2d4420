"""Certificates as NVIDIA FLARE makes them, for tests without it."""

import datetime
import ipaddress

import pytest

x509 = pytest.importorskip("cryptography.x509")
hashes = pytest.importorskip("cryptography.hazmat.primitives.hashes")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")

NOW = datetime.datetime.now(datetime.UTC)


def named(name, organisation=None):
    kinds = {x509.NameOID.COMMON_NAME: name, x509.NameOID.ORGANIZATION_NAME: organisation or name}
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in kinds.items()])


def alternative(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def certificate(name, key, issuer, issuers_key, organisation=None):
    build = x509.CertificateBuilder().subject_name(named(name, organisation)).issuer_name(named(issuer))
    build = (
        build.public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(1))
    )
    build = build.not_valid_after(NOW + datetime.timedelta(1))
    build = build.add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
    build = build.add_extension(x509.SubjectAlternativeName([alternative(name)]), critical=False)
    return build.sign(issuers_key, hashes.SHA256())


def certify(folder, names, authority="federation", others=None):
    """Writes what a kit's folder startup holds, as NVIDIA FLARE makes it; `others` are folder -> name of no party."""
    root = rsa.generate_private_key(65537, 2048)
    own = certificate(authority, root, authority, root).public_bytes(serialization.Encoding.PEM)
    owners = {**dict(zip(names, names)), **(others or {})}
    for folder_name, name in owners.items():
        key, startup = rsa.generate_private_key(65537, 2048), folder / folder_name / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        (startup / "rootCA.pem").write_bytes(own)
        organisation = name if folder_name == name else authority
        signed = certificate(name, key, authority, root, organisation).public_bytes(serialization.Encoding.PEM)
        (startup / "client.crt").write_bytes(signed)
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (startup / "client.key").write_bytes(key.private_bytes(*pem))
