"""The certificate of a local server: the clients that accept it, and its renewal."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

import pytest

from spade_coreason.xmpp.servers.certificate import RENEW_BEFORE, VALID_FOR, CertificateFiles, ensure_certificate

DOMAINS = ("localhost", "muc.localhost")
DAY = dt.timedelta(days=1)


def handshake(certificate: CertificateFiles, ca_file: Path, name: str) -> None:
    """Do a TLS handshake in memory, verified as strictly as OpenSSL can."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate.certificate, certificate.key)
    client_context = ssl.create_default_context(cafile=ca_file)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


@pytest.mark.parametrize("name", [*DOMAINS, "127.0.0.1"])
def test_a_strict_client_accepts_it_for_the_servers_names(name: str, tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, DOMAINS)
    handshake(certificate, certificate.ca_file, name)


def test_it_is_rejected_for_another_name_or_another_authority(tmp_path: Path) -> None:
    one, two = (ensure_certificate(tmp_path / name, DOMAINS) for name in ("one", "two"))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(one, one.ca_file, "example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(one, two.ca_file, "localhost")


def test_the_key_is_readable_only_by_its_owner_and_the_authoritys_is_not_stored(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, DOMAINS)
    assert certificate.key.stat().st_mode & 0o077 == 0
    assert sorted(tmp_path.iterdir()) == sorted([certificate.ca_file, certificate.certificate, certificate.key])


def test_it_is_kept_until_a_month_before_its_end(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    first = ensure_certificate(tmp_path, DOMAINS, now=now).der
    assert ensure_certificate(tmp_path, DOMAINS, now=now + VALID_FOR - RENEW_BEFORE - DAY).der == first
    renewed = ensure_certificate(tmp_path, DOMAINS, now=now + VALID_FOR - RENEW_BEFORE + DAY).der
    assert renewed != first


@pytest.mark.parametrize("broken", ["ca.pem", "localhost_cert.pem", "localhost_key.pem"])
@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"])
def test_a_broken_one_is_made_anew(broken: str, content: str | None, tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, DOMAINS).der
    if content is None:
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_text(content)
    certificate = ensure_certificate(tmp_path, DOMAINS)
    assert certificate.der != first
    handshake(certificate, certificate.ca_file, "localhost")


def test_one_with_another_key_or_for_fewer_names_is_made_anew(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, DOMAINS)
    first = certificate.der
    certificate.key.write_bytes(ensure_certificate(tmp_path / "other", DOMAINS).key.read_bytes())
    second = ensure_certificate(tmp_path, DOMAINS).der
    assert second != first
    assert ensure_certificate(tmp_path, (*DOMAINS, "upload.localhost")).der != second
