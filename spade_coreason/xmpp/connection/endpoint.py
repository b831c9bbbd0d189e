"""The address of an XMPP server and the trust in its certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ServerEndpoint:
    """The address of a server, the way to verify it, and the limits of a connection attempt.

    Without a `host` the server is found through the JID's domain (SRV records, RFC 6120). All agents share one object, and
    so one TLS context.
    """

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
        # A separate context for each client would cost 850 KiB each.
        object.__setattr__(self, "context", context)

    def address(self, domain: str) -> str:
        """Return host and port, for messages to people. The host is `domain` if none is set."""
        return f"{self.host or domain}:{self.port or 5222}"
