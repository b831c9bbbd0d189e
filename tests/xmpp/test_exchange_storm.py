"""Ten agents ask each other, with delays, failures, cancellations and deadlines: each ask ends once, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, PeerError, Peers, Response, Session
from spade_coreason.exceptions import PeerFailedError, PeerTimeoutError
from tests.support.databases import read_rows
from tests.support.hosting import UNLIMITED, OnlineAgent, run_agent
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

"""The number of asks on each server. A third as many are between two servers that federate."""
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_AGENTS = 10
_AT_ONCE = 64
_CLOSED = 2
"""The state of a request in the inbox that has ended."""


class StormAgent:
    """Does what the query says: answers after a delay, fails, waits for ever, or asks another agent."""

    def __init__(self, peers: Peers, jids: list[str]) -> None:
        self.manifest = AgentDefinition.simple("storm")
        self._peers = peers
        self._jids = jids

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        plan = request.payload["plan"]
        await asyncio.sleep(plan["delay_s"])
        match plan["kind"]:
            case "fail":
                await response.error("as planned")
            case "hang":
                await asyncio.Event().wait()
            case "pass on":
                answer = await self._peers.ask(self._jids[plan["to"]], {"plan": plan["next"]}, timeout=TIMEOUT_S)
                await response.markdown(f"passed on: {answer.text}")
            case _:
                stream = await response.create_stream()
                for piece in ("answer ", str(plan["number"])):
                    await stream.write(piece)


class Storm:
    """The plan of one ask: what its peer does, and how it ends."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.asker, self.peer, third = rng.sample(range(_AGENTS), 3)
        kind = rng.choices(["answer", "fail", "hang", "pass on"], [6, 1, 1, 2])[0]
        self.plan: dict[str, Any] = {"kind": kind, "delay_s": rng.uniform(0, 0.02), "number": number}
        if kind == "pass on":
            self.plan |= {"to": third, "next": {"kind": "answer", "delay_s": rng.uniform(0, 0.01), "number": number}}
        is_cancelled = kind == "hang" and rng.random() < 0.5
        self.end = "cancelled" if is_cancelled else {"fail": "failed", "hang": "timed out"}.get(kind, "answered")
        self.text = f"passed on: answer {number}" if kind == "pass on" else f"answer {number}"
        self.end_s = rng.uniform(0.05, 0.2)

    async def run(self, peers: Peers, jids: list[str]) -> str:
        """Ask, and return how it ended."""
        timeout = self.end_s if self.end == "timed out" else TIMEOUT_S
        asking = asyncio.create_task(peers.ask(jids[self.peer], {"plan": self.plan}, timeout=timeout))
        if self.end == "cancelled":
            asyncio.get_running_loop().call_later(self.end_s, asking.cancel)
        try:
            answer = await asking
        except PeerFailedError as error:
            return "failed" if "as planned" in str(error) else str(error)
        except PeerTimeoutError:
            return "timed out"
        except PeerError as error:
            return str(error)
        except asyncio.CancelledError:
            return "cancelled" if asking.cancelled() else "the test is cancelled"
        return "answered" if answer.text == self.text else f"another answer: {answer.text}"


@pytest.fixture(params=["prosody", pytest.param("ejabberd", marks=pytest.mark.release), "federation"])
def servers(request: pytest.FixtureRequest) -> tuple[XmppServer, ...]:
    """The servers of the agents: one, or two that federate."""
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, tuple) else (found,)


@short_and_long_in_release("EXCHANGE_ASKS", 150, 600)
@pytest.mark.timeout(120 + int(os.environ.get("EXCHANGE_ASKS", "600")) // 10)
async def test_each_ask_ends_once_as_planned_and_nothing_is_left(
    servers: tuple[XmppServer, ...], tmp_path: Path, count: int
) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng = random.Random(SEED)
    asks = count if len(servers) == 1 else count // 3
    domains = [server.domain for server in servers]
    jids: list[str] = []
    async with AsyncExitStack() as stack:
        online: list[OnlineAgent] = []
        for number in range(_AGENTS):
            server = servers[number % len(servers)]
            agent = await stack.enter_async_context(
                run_agent(lambda peers: StormAgent(peers, jids), server, tmp_path, policy=UNLIMITED, access=domains)
            )
            online.append(agent)
            jids.append(agent.jid)
        # While Prosody connects to another server, a message may overtake others: a cancellation could come before its request.
        plan = {"kind": "answer", "delay_s": 0, "number": 0}
        for number, agent in enumerate(online):
            await agent.peers.ask(jids[(number + 1) % _AGENTS], {"plan": plan}, timeout=TIMEOUT_S)
        tasks_before = len(asyncio.all_tasks())
        storms = [Storm(rng, number) for number in range(asks)]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def run(storm: Storm) -> str:
            async with slots:
                return await storm.run(online[storm.asker].peers, jids)

        ends = await asyncio.gather(*(run(storm) for storm in storms))
        assert [end for end, storm in zip(ends, storms, strict=True) if end != storm.end] == []
        await eventually(lambda: all(not agent.runner.mailboxes.busy_count for agent in online))
        assert sum(agent.requests.open_count for agent in online) == 0
        assert sum(len(agent.runner.mailboxes.program_requests) for agent in online) == 0
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks_before)
    rows = [row["state"] for agent in online for row in read_rows(agent.url, "inbox")]
    assert len(rows) >= asks * 0.9  # a request that was cancelled before it arrived is not there
    assert set(rows) == {_CLOSED}
    assert [read_rows(agent.url, "steps") for agent in online] == [[]] * _AGENTS
