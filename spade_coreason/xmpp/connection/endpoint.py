"""Where an XMPP server is, and how it is trusted."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ServerEndpoint:
    """Without a host it is found by the domain (SRV records, RFC 6120). One object, and one TLS context, for all agents."""

    host: str | None = None
    port: int | None = None
    verify: bool = True
    ca_file: Path | None = None
    timeout_s: float = 10.0
    attempts: int = 1
    context: ssl.SSLContext = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # A context of its own costs every client 850 KiB.
        object.__setattr__(self, "context", context)

    def address(self, domain: str) -> str:
        """For messages to people."""
        return f"{self.host or domain}:{self.port or 5222}"
