"""A host of a test's own: its network has IPv4 only and a name server, and nothing of it reaches another machine.

`run_on_private_host(module, directory)` runs `python -m MODULE DIRECTORY` there, as root. The module first calls
`prepare_host`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import dns.zone

from tests.support.program import clean_environment
from tests.support.servers.requirements import find_program, require
from tests.support.wait import TIMEOUT_S

ADDRESS = "192.0.2.1"
"""An address of the host that is not loopback (RFC 5737)."""
_UNSHARE = ("unshare", "--net", "--mount")


def run_on_private_host(module: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a module there to its end. Skip the test where this user may not make a network of its own."""
    tools = shutil.which("unshare") is not None and find_program("ip") is not None
    may = os.getuid() == 0 and tools and subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    require("a network of the test's own (root, unshare, ip)", may, "run it as root, with util-linux and iproute2")
    command = [*_UNSHARE, sys.executable, "-m", module, str(directory)]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)


def prepare_host(directory: Path) -> None:
    """Bring up the loopback interface, with `ADDRESS` too, and use the name server of this host."""
    configuration = directory / "resolv.conf"
    configuration.write_text("nameserver 127.0.0.1\n")
    for setup in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"],
        ["mount", "--bind", str(configuration), "/etc/resolv.conf"],
    ):
        subprocess.run(setup, check=True)


async def serve_names(zone: str, origin: str) -> asyncio.BaseTransport:
    """Answer DNS queries of this host with the records of a zone."""
    parsed = dns.zone.from_text(zone, origin, relativize=False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _NameServer(parsed), local_addr=("127.0.0.1", 53))
    return transport


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self, zone: dns.zone.Zone) -> None:
        self._zone = zone
        assert zone.origin is not None
        self._origin = zone.origin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        [question] = query.question
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA | dns.flags.RA
        node = self._zone.get_node(question.name) if question.name.is_subdomain(self._origin) else None
        if node is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif records := node.get_rdataset(question.rdclass, question.rdtype):
            answer.answer.append(dns.rrset.from_rdata_list(question.name, records.ttl, list(records)))
        self._transport.sendto(answer.to_wire(), addr)
