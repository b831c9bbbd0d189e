"""A process with an HTTP server for `benchmarks.web_footprint`, which measures its own memory.

It prints lines of JSON: the port and the memory of the started server, and for each line that it reads its memory then. At the
line `doors` it loads all doors first, with what they load when they are used.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path


def read_memory_kib() -> int:
    """Return the proportional set of this process in KiB."""
    gc.collect()
    [line] = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1])


def load_doors() -> None:
    """Build the routes of all doors, and load what they load at the first request."""
    import spade_coreason.doors.mcp.server
    import spade_coreason.doors.webhooks.routes  # noqa: F401
    from spade_coreason.doors import DoorAgents, make_a2a_routes, make_mcp_routes, make_openai_routes

    doors, url = DoorAgents(), "http://127.0.0.1:8080"
    make_openai_routes(doors, url)
    make_a2a_routes(doors, url)
    make_mcp_routes(doors)


async def main() -> None:
    """Measure the process of a platform before it has a server and afterwards, then serve."""
    import spade_coreason.app.platform
    import spade_coreason.config.loader
    import spade_coreason.operations.rpc.endpoint
    import spade_coreason.runtime.runner
    import spade_coreason.xmpp.host  # noqa: F401 - what each platform has anyway
    from spade_coreason.xmpp.servers.process import find_free_ports

    [port] = find_free_ports(1)
    before = read_memory_kib()
    from tests.support.doors import serve, web_settings

    limits = {"connections": 2000, "connections_per_address": 2000, "requests_per_key": 2000}
    async with serve(web_settings(port=port, limits=limits)):
        print(json.dumps({"port": port, "kib": read_memory_kib() - before}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line == "doors\n":
                load_doors()
            print(json.dumps({"kib": read_memory_kib() - before}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
