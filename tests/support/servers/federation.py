"""Two Prosody servers that federate (s2s): each has a domain and an authority of its own, and all traffic is on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.prosody import Federation, prosody
from tests.support.servers.server import LOOPBACK, XmppServer

WEST, EAST = "west.example", "east.example"
NOWHERE = "nowhere.example"
"""A domain that no server has."""


class S2SAddress(NamedTuple):
    """The address at which a server accepts connections of other servers."""

    port: int
    host: str = LOOPBACK


def find_s2s_addresses() -> tuple[S2SAddress, S2SAddress]:
    """Return free addresses for two servers."""
    west, east = find_free_ports(2)
    return S2SAddress(west), S2SAddress(east)


def federate(
    directory: Path,
    west: S2SAddress,
    east: S2SAddress,
    *,
    link_to_west: int | None = None,
    link_to_east: int | None = None,
    resends: bool = False,
    offline: bool = True,
) -> tuple[XmppServer, XmppServer]:
    """Prepare the servers of `WEST` and `EAST` without starting them.

    link_to_west, link_to_east  The port by which the other server reaches a server, if it is not that of its address.
    resends                     Send unacknowledged messages again after a cut. By default they bounce.
    offline                     Store messages for accounts that are offline.
    """
    ca_file = directory / "authorities.pem"

    def prepare(domain: str, federation: Federation) -> XmppServer:
        other_domain = f"other.{domain}"
        return prosody(directory / domain, domain=domain, other_domain=other_domain, federation=federation, offline=offline)

    servers = (
        prepare(WEST, Federation(west.port, {EAST: link_to_east or east.port}, ca_file, resends)),
        prepare(EAST, Federation(east.port, {WEST: link_to_west or west.port}, ca_file, resends)),
    )
    ca_file.write_bytes(b"".join(server.ca_file.read_bytes() for server in servers))
    return servers
