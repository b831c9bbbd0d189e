"""The address of an XMPP server and the trust in its certificate."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...config import find_ca_file_problem
from ...domain.environment.https_trust import HttpsTrust, make_client_context
from ...exceptions import ConfigError
from .resolver import DEFAULT_PORT, Resolver, SystemResolver

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerEndpoint:
    """The address of a server, the way to verify it, and the limits of a connection attempt.

    All agents share one object, and so one TLS context. The certificate must name the JID's domain, whatever the host is
    (RFC 6120, 13.7.2).

    Parameters:
        host: the server's host. By default it is found through the JID's domain (SRV records, RFC 6120).
        port: the server's port, 5222 by default.
        verify: verify the server's certificate. Without it the password leaves by SCRAM only, or by PLAIN to this machine.
        ca_file: a PEM file with the authority that signed the server's certificate.
        timeout_s: the time for each attempt to connect, in seconds.
        attempts: the number of attempts to connect. A refused login is not tried again.
        requires_tls: send nothing before TLS. Disable it only for a server on this machine that has no TLS.
        resolver: what asks the DNS. By default it is the one of this machine.
    """

    host: str | None = None
    port: int | None = None
    verify: bool = True
    ca_file: Path | None = None
    timeout_s: float = 10.0
    attempts: int = 1
    requires_tls: bool = True
    resolver: Resolver = field(default_factory=SystemResolver, repr=False, compare=False)
    files_url: str = ""
    """The address below which a local server keeps files. Agents may fetch these although the address is private."""
    has_lease: Callable[[], bool] | None = field(default=None, repr=False, compare=False)
    """A function that returns True while agents may connect; None if they always may. A worker may not without a lease."""
    has_forgery: bool = False
    """True if senders can be forged there, as on the embedded server."""
    context: ssl.SSLContext = field(init=False, repr=False, compare=False)
    https_trust: HttpsTrust = field(init=False, repr=False, compare=False)
    """The trust for links to files. It has no `xmpp-client` (ALPN), and has the authorities of the system too."""
    _read_at: tuple[int, int, int] | None = field(init=False, repr=False, compare=False)
    """The state of `ca_file` when it was read."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "https_trust", HttpsTrust(self.ca_file, verify=self.verify))
        try:
            self._read_ca_file()
        except OSError as error:
            raise ConfigError("server.tls.ca_file (--ca-file)", find_ca_file_problem(self.ca_file) or str(error)) from error

    def update_context(self) -> ssl.SSLContext:
        """Return the TLS context, made anew if `ca_file` has changed. A file that cannot be read changes nothing."""
        if self._stat_ca_file() != self._read_at:
            try:
                self._read_ca_file()
            except OSError as error:  # ssl.SSLError is one
                log.warning("server.tls.ca_file: %s: cannot be read: %s; its last content is used", self.ca_file, error)
        return self.context

    def _read_ca_file(self) -> None:
        read_at = self._stat_ca_file()
        context = make_client_context(self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["xmpp-client"])  # XEP-0368; servers that share a port with HTTPS need it
        # A separate context for each client would cost 850 KiB each.
        object.__setattr__(self, "context", context)
        object.__setattr__(self, "_read_at", read_at)

    def _stat_ca_file(self) -> tuple[int, int, int] | None:
        try:
            found = self.ca_file.stat() if self.ca_file is not None else None
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size) if found is not None else None

    def address(self, domain: str) -> str:
        """Return the configured host and port for messages to people; without a host, the domain."""
        return f"{self.host or domain}:{self.port or DEFAULT_PORT}" if self.host or self.port else domain
