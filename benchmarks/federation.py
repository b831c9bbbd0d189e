"""What a message between agents of two domains costs their servers: `python -m benchmarks.federation [MESSAGES]`.

Two Prosody servers federate on this machine. A client sends messages to one of the same domain, then to one of the other
domain. The figure is the CPU of each server, which does not depend on what else runs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers.clients import StockClient
from tests.support.servers.federation import federate, find_s2s_addresses

from .processes import read_cpu_s

MESSAGES = 20_000
_IN_FLIGHT = 500
_BODY = "A question of the usual length, which an agent of another installation answers at once."


async def send(sender: StockClient, recipient: StockClient, count: int) -> None:
    """Send `count` messages, of which at most 500 are on the way, and wait until all have come."""
    for first in range(0, count, _IN_FLIGHT):
        size = min(_IN_FLIGHT, count - first)
        for _ in range(size):
            sender.xmpp.send_raw(f"<message to='{recipient.jid}' type='chat'><body>{_BODY}</body></message>")
        for _ in range(size):
            await recipient.messages.get()


async def main(count: int) -> None:
    """Print the CPU of both servers for a message within a domain, and for one between the two."""
    with tempfile.TemporaryDirectory(prefix="federation-") as name, ExitStack() as stack:
        servers = [stack.enter_context(server) for server in federate(Path(name), *find_s2s_addresses())]
        west, east = servers
        accounts = [await server.account() for server in (west, west, east)]
        async with (
            StockClient(*accounts[0], west) as sender,
            StockClient(*accounts[1], west) as near,
            StockClient(*accounts[2], east) as far,
        ):
            for place, recipient in (("of the same domain", near), ("of another domain", far)):
                await send(sender, recipient, _IN_FLIGHT)  # the first message opens the connection of the servers
                before = [read_cpu_s(server.pid) for server in servers]
                await send(sender, recipient, count)
                used = [read_cpu_s(server.pid) - cpu_s for server, cpu_s in zip(servers, before, strict=True)]
                sending, receiving = (seconds / count * 1e6 for seconds in used)
                print(
                    f"to a client {place}: {sending:.0f} us of CPU of its sender's server, {receiving:.0f} us of the other one"
                )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES))
