"""The authorities that HTTPS links are verified with, and the words for a failed TLS handshake."""

from __future__ import annotations

import ssl
from pathlib import Path


def make_client_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Make a context for TLS 1.2 or newer, which verifies with the authorities in `ca_file`, or those of the system."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Debian's Python leaves it to OpenSSL
    return context


class HttpsTrust:
    """The authorities of the system and those in `ca_file`, which is read again when it changes."""

    def __init__(self, ca_file: Path | None = None, *, verify: bool = True) -> None:
        self.ca_file = ca_file
        self._verify = verify
        self._context: ssl.SSLContext | None = None
        self._read_at = 0

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. A file that can no longer be read changes nothing; OSError if it never could."""
        try:
            read_at = self.ca_file.stat().st_mtime_ns if self.ca_file is not None else 0
            if self._context is not None and read_at == self._read_at:
                return self._context
            context = make_client_context()
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
        except OSError:
            if self._context is None:
                raise
            return self._context
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._context, self._read_at = context, read_at
        return context


def split_tls_reason(error: ssl.SSLError) -> tuple[str, bool]:
    """Return OpenSSL's reason in plain words, and True if it is an alert: what the other side has said (RFC 8446, 6)."""
    # Of a newer OpenSSL, Python has only a text: "[SSL] legacy sigalg disallowed or unsupported (_ssl.c:992)".
    reason = getattr(error, "reason", None) or str(error).rpartition("] ")[2].partition(" (_ssl")[0]
    words = reason.lower().replace("_", " ")
    before, _, alert = words.partition("alert ")
    return (alert, True) if before != words else (words, False)
