"""The authorities that HTTPS links are verified with, and the words for a failed TLS handshake."""

from __future__ import annotations

import ssl
from pathlib import Path


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
            context = ssl.create_default_context()
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


def split_tls_reason(reason: str) -> tuple[str, bool]:
    """Return OpenSSL's reason in plain words, and True if it is an alert: what the other side has said (RFC 8446, 6)."""
    words = reason.lower().replace("_", " ")
    before, _, alert = words.partition("alert ")
    return (alert, True) if before != words else (words, False)
