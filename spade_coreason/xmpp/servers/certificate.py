"""The certificate of a local server: created here, for this machine only, and verified by our clients.

A small authority signs the server's certificate. Its key is discarded at once, so the authority that the clients trust can
never sign anything else.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...domain.environment.private_files import replace_file

VALID_FOR = dt.timedelta(days=365)
RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Three PEM files: `ca_file` for the clients to verify the server, `certificate` and `key` (mode 0600) for the server."""

    ca_file: Path
    certificate: Path
    key: Path

    @property
    def der(self) -> bytes:
        """The certificate as it goes over the wire. Only the server that has the key can present it."""
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).public_bytes(serialization.Encoding.DER)


def ensure_certificate(directory: Path, domains: Sequence[str], *, now: dt.datetime | None = None) -> CertificateFiles:
    """Return the certificate in `directory`, for `domains` and 127.0.0.1.

    Create a new one if it is missing, broken, for other domains, or expires within 30 days.
    """
    name = domains[0]  # pyjabber looks for files with this name
    files = CertificateFiles(directory / "ca.pem", directory / f"{name}_cert.pem", directory / f"{name}_key.pem")
    now = now or dt.datetime.now(dt.UTC)
    if not _is_valid(files, domains, now):
        directory.mkdir(parents=True, exist_ok=True)
        _create(files, domains, now)
    return files


def _is_valid(files: CertificateFiles, domains: Sequence[str], now: dt.datetime) -> bool:
    try:
        authority = x509.load_pem_x509_certificate(files.ca_file.read_bytes())
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        expires = min(authority.not_valid_after_utc, certificate.not_valid_after_utc)
    except Exception:  # noqa: BLE001 - for every problem with the files the remedy is to create new ones
        return False
    return (
        key.public_key() == certificate.public_key()
        and set(domains) <= set(names.get_values_for_type(x509.DNSName))
        and certificate.not_valid_before_utc <= now < expires - RENEW_BEFORE
    )


def _create(files: CertificateFiles, domains: Sequence[str], now: dt.datetime) -> None:
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"local server of {domains[0]}")])
    authority = _certificate_builder(issuer, issuer, authority_key, authority_key, now, is_authority=True)
    alternatives = [
        *(x509.DNSName(domain) for domain in domains),
        x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
    ]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domains[0])])
    server = (
        _certificate_builder(subject, issuer, key, authority_key, now, is_authority=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    replace_file(files.ca_file, authority.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)
    replace_file(files.certificate, server.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)
    replace_file(
        files.key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        0o600,
    )


def _certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    """Fill in all that OpenSSL's strict mode requires. Python 3.13 enables that mode by default."""
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks differ, also between a container and its host
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
