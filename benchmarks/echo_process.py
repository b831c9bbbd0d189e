"""One echo agent in a process of its own: `python -m benchmarks.echo_process KIND HOST PORT CA_FILE JID`.

Reads the password from standard input, says "ready" when it is online, and its CPU seconds for every further line.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any


async def raw(host: str, port: int, ca_file: str, jid: str, password: str) -> object:
    """A bare slixmpp client that answers."""
    import slixmpp

    client = slixmpp.ClientXMPP(f"{jid}/agent", password)
    client.enable_direct_tls = False
    client.ssl_context = ssl.create_default_context(cafile=ca_file)
    ready = asyncio.Event()

    def start(_event: Any) -> None:
        client.send_presence()
        ready.set()

    def answer(message: Any) -> None:
        if message["type"] in ("chat", "normal"):
            message.reply(message["body"]).send()

    client.add_event_handler("session_start", start)
    client.add_event_handler("message", answer)
    client.connect(host, port)
    await ready.wait()
    return client


async def spade(host: str, port: int, ca_file: str, jid: str, password: str) -> object:
    """A SPADE agent with a CyclicBehaviour that answers."""
    from spade.agent import Agent
    from spade.behaviour import CyclicBehaviour

    class Echo(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            message = await self.receive(timeout=60)
            if message is not None:
                await self.send(message.make_reply())

    class EchoAgent(Agent):  # type: ignore[misc]  # as above
        async def _async_connect(self) -> None:
            # SPADE knows no other host than the JID's domain.
            online = asyncio.Event()
            self.client.add_event_handler("session_start", lambda _event: online.set())
            self.client.add_event_handler("message", self._message_received)
            self.client.connect(host=host, port=port)
            await online.wait()

        async def setup(self) -> None:
            self.add_behaviour(Echo())

    agent = EchoAgent(f"{jid}/agent", password, port=port)
    await agent.start(auto_register=False)
    return agent


async def hosted(host: str, port: int, ca_file: str, jid: str, password: str, durability: Any = "full") -> object:
    """Ours, with all promises on."""
    from spade_coreason import AgentDefinition, Policy, Runner
    from spade_coreason.access import Access
    from spade_coreason.agents.echo import EchoAgent
    from spade_coreason.conversation import Rules
    from spade_coreason.door import Door
    from spade_coreason.peers import OpenRequests
    from spade_coreason.stores import AgentStore, Database
    from spade_coreason.xmpp.endpoint import Endpoint
    from spade_coreason.xmpp.host import HostedAgent

    directory = tempfile.mkdtemp(prefix="benchmark-")
    database = await Database.open(f"sqlite+aiosqlite:///{directory}/platform.db", durability)
    agent = HostedAgent(jid, password, Endpoint(host, port, ca_file=Path(ca_file)))
    policy = Policy(rules=Rules(max_interactions=0))
    runner = Runner(EchoAgent(AgentDefinition.simple("echo")), jid, AgentStore(database, jid), policy)
    agent.serve(runner, Door(runner, OpenRequests(), Access(jid), agent.send))
    await agent.start()
    return agent


async def hosted_normal(host: str, port: int, ca_file: str, jid: str, password: str) -> object:
    """Ours, durable against the end of the process but not against a power cut."""
    return await hosted(host, port, ca_file, jid, password, "normal")


KINDS = {"slixmpp": raw, "SPADE": spade, "hosted": hosted, "hosted, durability normal": hosted_normal}


async def main(kind: str, host: str, port: str, ca_file: str, jid: str) -> None:
    """Runs until standard input ends."""
    loop = asyncio.get_running_loop()
    password = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    agent = await KINDS[kind](host, int(port), ca_file, jid, password)
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, flush=True)
    del agent


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    finally:
        sys.stdout.flush()
