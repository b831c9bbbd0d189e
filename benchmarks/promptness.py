"""The time until a person sees "typing…" and the first words of an agent, while a hundred conversations are busy.

Sender, agent and receiver share one process. A late event loop makes everything late, so its lateness is measured too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spade_coreason.domain.policy import PlatformLimits, Policy, Rules
from spade_coreason.runtime import tune_gc
from tests.support.hosting import FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

PEOPLE, THREADS = 10, 10
ROOMY = Policy(limits=PlatformLimits(concurrency=4 * PEOPLE * THREADS), rules=Rules(max_interactions=0))
ACTIVE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
COMPOSING = "{http://jabber.org/protocol/chatstates}composing"
CORRECTS = ("xep_0030", "xep_0115", "xep_0308")
_BETWEEN_S = 0.002


@dataclass(frozen=True)
class Waits:
    """Seconds that people waited, in ascending order, and the greatest lateness of the event loop."""

    waits_s: list[float]
    loop_late_s: float

    @property
    def median_s(self) -> float:
        return self.waits_s[len(self.waits_s) // 2]


async def typing_waits(server: XmppServer, directory: Path) -> Waits:
    """Measure from each of a hundred questions to "typing…", while the agent works on all of them."""
    done = asyncio.Event()

    async def assist(request: Any, session: Any, response: Any) -> None:
        await done.wait()

    async with busy(assist, server, directory) as (agent, people), _Lateness() as lateness:
        sent: dict[str, float] = {}
        seen = asyncio.gather(*(_typing(person, sent) for person in people))
        for number in range(THREADS):
            for person in people:
                thread = f"{person.jid}-{number}"
                sent[thread] = time.monotonic()
                person.send("think", agent.jid, thread=thread, extra_xml=ACTIVE)
                await asyncio.sleep(_BETWEEN_S)
        waits = [wait for person_waits in await seen for wait in person_waits]
        assert agent.runner.mailboxes.busy_count == len(waits), "they have to be busy all at once"
        done.set()
    return Waits(sorted(waits), lateness.most_s)


async def first_words_waits(server: XmppServer, directory: Path) -> Waits:
    """Measure from the first word that an agent writes into a stream until a person sees it, with a hundred streams at once."""
    done = asyncio.Event()
    written: dict[str, float] = {}

    async def assist(request: Any, session: Any, response: Any) -> None:
        stream = await response.create_stream()
        written[request.metadata["conversation_id"]] = time.monotonic()
        await stream.write("first")
        await done.wait()

    async with busy(assist, server, directory, *CORRECTS) as (agent, people), _Lateness() as lateness:
        for person in people:
            person.xmpp.send_presence(pto=agent.jid)
        await eventually(lambda: all(agent.host.peer_features.has_corrections(person.jid) for person in people))
        seen = asyncio.gather(*(_first_words(person, written) for person in people))
        for number in range(THREADS):
            for person in people:
                person.send("speak", agent.jid, thread=f"{person.jid}-{number}")
                await asyncio.sleep(_BETWEEN_S)
        waits = [wait for person_waits in await seen for wait in person_waits]
        done.set()
    return Waits(sorted(waits), lateness.most_s)


async def _typing(person: StockClient, sent: dict[str, float]) -> list[float]:
    waits: list[float] = []
    while len(waits) < THREADS:
        message = await person.message()
        if message.xml.find(COMPOSING) is not None:
            waits.append(time.monotonic() - sent[message["thread"]])
    return waits


async def _first_words(person: StockClient, written: dict[str, float]) -> list[float]:
    waits: list[float] = []
    while len(waits) < THREADS:
        message = await person.answer()
        waits.append(time.monotonic() - written[message["thread"]])
    return waits


@asynccontextmanager
async def busy(
    assist: Any, server: XmppServer, directory: Path, *plugins: str
) -> AsyncIterator[tuple[OnlineAgent, list[StockClient]]]:
    """An agent that does what `assist` does, in as many conversations at once as are wanted, and people who are online."""
    accounts = await asyncio.gather(*(server.account() for _ in range(PEOPLE)))
    people = [StockClient(*account, server, plugins=plugins) for account in accounts]
    async with run_agent(FunctionAgent(assist), server, directory, policy=ROOMY) as agent:
        try:
            await asyncio.gather(*(person.connect() for person in people))
            tune_gc()  # as `up` does
            yield agent, people
        finally:
            await asyncio.gather(*(person.close() for person in people))


class _Lateness:
    def __init__(self) -> None:
        self.most_s = 0.0

    async def __aenter__(self) -> _Lateness:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            started = time.monotonic()
            await asyncio.sleep(0.005)
            self.most_s = max(self.most_s, time.monotonic() - started - 0.005)
