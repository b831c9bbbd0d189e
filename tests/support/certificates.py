"""Certificates for tests: of any name and any time, signed by themselves or by an authority of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from spade_coreason.xmpp.servers.certificate import CertificateFiles


def sign_by_itself(directory: Path, name: str, *, from_day: float = -1, until_day: float = 1) -> CertificateFiles:
    """Make a certificate that is its own authority, valid from one day to another, both relative to now."""
    directory.mkdir(parents=True, exist_ok=True)
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now, day = datetime.now(UTC), timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1, now + from_day * day, now + until_day * day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "cert.pem", directory / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return CertificateFiles(certificate_file, certificate_file, key_file)
