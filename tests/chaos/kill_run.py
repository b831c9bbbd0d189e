"""Kills, cuts and frozen processes while people ask: each question has one answer, to whoever asked, in order.

Askers have stream management and send what the server has not acknowledged again, with the same id, as clients of people do.
They fetch offline messages, as agents do. They never ask twice. The network between them, the platform and the server is a
tunnel each.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp import Presence

from spade_coreason.domain.jid import bare_jid
from spade_coreason.runtime import OutboundMessage
from spade_coreason.xmpp.codec.namespaces import DELAY
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from spade_coreason.xmpp.offline import OfflineMessages
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.chaos.attacks import BODY
from tests.support.hosting import PlatformProcess, Tunnel, endpoint_of, run_platform
from tests.support.servers.server import XmppServer

_AGENTS = 3
_ASKERS = 4
_INTERVAL_S = 0.25
_FAULT_S = (0.5, 3.0)
_SETTLE_S = 60.0
QUESTION = re.compile(r"q\d+ .+ \d+")
_TIMINGS = ConnectionTimings(keepalive_interval_s=2.0, response_timeout_s=3.0)


@dataclass
class KillTally:
    """The counts of the questions, by their outcome."""

    server: str
    faults: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    answered: int = 0
    lost: int = 0
    lost_by_server: int = 0
    """Questions without an answer that were open when the server was killed. It loses what it has in memory."""
    refused: int = 0
    """Questions that came back as errors."""
    twice: int = 0
    """Questions answered under two ids."""
    crossed: int = 0
    """Answers to the question of somebody else, or of another agent."""
    turns_out_of_order: int = 0
    """Questions that reached the agent behind a later one of the same person. Then the server did not keep their order."""
    out_of_order: int = 0
    """Answers that came behind the answer to a later turn of the same conversation.

    ejabberd delivers what it kept for people who were away between newer messages. Those answers do not count there.
    """

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        counts = [self.asked, self.answered, self.lost, self.lost_by_server, self.refused, self.twice, self.crossed]
        counts += [self.turns_out_of_order, self.out_of_order]
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        return (self.server, faults, *map(str, counts))

    @property
    def problems(self) -> list[str]:
        """The counts that are not 0, and have to be, in words."""
        counts = {
            "lost": self.lost,
            "under two ids": self.twice,
            "crossed": self.crossed,
            "answers out of order": self.out_of_order,
        }
        return [f"{count} {name}" for name, count in counts.items() if count]


COLUMNS = (
    "server",
    "faults",
    "asked",
    "answered",
    "lost",
    "lost by the server",
    "refused",
    "under two ids",
    "crossed",
    "turns out of order",
    "answers out of order",
)


@dataclass(eq=False)
class Scene:
    """The parts that a fault may break."""

    server: XmppServer
    platform: PlatformProcess
    tunnels: Sequence[Tunnel]
    askers: Sequence[Asker]
    rng: random.Random

    @property
    def duration_s(self) -> float:
        """A duration of a fault."""
        return self.rng.uniform(*_FAULT_S)


async def _kill_platform(scene: Scene) -> None:
    await scene.platform.signal(signal.SIGKILL)
    await scene.platform.start()


async def _restart_platform(scene: Scene) -> None:
    await scene.platform.signal(signal.SIGTERM)
    await scene.platform.start()


async def _freeze_platform(scene: Scene) -> None:
    process = scene.platform.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(scene.duration_s)
    process.send_signal(signal.SIGCONT)


async def _kill_server(scene: Scene) -> None:
    _note_open_questions(scene.askers)
    await asyncio.to_thread(scene.server.kill)
    _note_open_questions(scene.askers)  # those that were asked until it was dead
    await asyncio.to_thread(scene.server.start)


def _note_open_questions(askers: Iterable[Asker]) -> None:
    for asker in askers:
        asker.questions_at_kill.update(asker.unanswered)


async def _cut(scene: Scene) -> None:
    scene.rng.choice(scene.tunnels).cut()


async def _black_hole(scene: Scene) -> None:
    """Lose all data of one direction. What is lost of a stream cannot come later, so the connection is cut then."""
    tunnel = scene.rng.choice(scene.tunnels)
    tunnel.dropped_direction = scene.rng.choice(("to the server", "to the agent"))
    await asyncio.sleep(scene.duration_s)
    tunnel.cut()
    tunnel.dropped_direction = ""


async def _throttle(scene: Scene) -> None:
    tunnel = scene.rng.choice(scene.tunnels)
    tunnel.pause_s = scene.rng.uniform(0.01, 0.2)
    await asyncio.sleep(scene.duration_s)
    tunnel.pause_s = 0.0


FAULTS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "kill -9 of the platform": _kill_platform,
    "kill -9 of the server": _kill_server,
    "SIGTERM": _restart_platform,
    "SIGSTOP": _freeze_platform,
    "cut": _cut,
    "black hole": _black_hole,
    "throttling": _throttle,
}


class Asker(SessionHandler):
    """One person with one device, which reconnects and resumes."""

    def __init__(self, name: str, account: tuple[str, str], server: XmppServer, port: int, tally: KillTally) -> None:
        self.name = name
        self.tally = tally
        self._server_keeps_order = server.kind != "ejabberd"
        self._answer_ids: dict[str, set[str]] = defaultdict(set)
        self._open: dict[str, str] = {}
        self.answers: dict[str, list[int]] = defaultdict(list)
        """The numbers of the answered questions, by agent, in the order of their first answers."""
        self.questions_at_kill: set[str] = set()
        """The questions that were open when the server was killed."""
        login = Login(f"{account[0]}/phone", account[1])
        self.connection = Connection(login, endpoint_of(server, port), self, timings=_TIMINGS)
        self.answered = asyncio.Event()
        self._offline_messages = OfflineMessages(self.connection)
        self._start: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the connection."""
        await self._offline_messages.close()
        await self.connection.close()

    def on_session(self, is_new: bool) -> None:
        if is_new:
            self._start = asyncio.create_task(self._start_session())

    async def _start_session(self) -> None:
        await self._offline_messages.begin()
        self.connection.client.send_presence()
        self._offline_messages.start(lambda: None)

    def ask(self, agent: str, number: int) -> None:
        """Ask an agent, once."""
        text = f"{self.name} {agent} {number}"
        self.tally.asked += 1
        self._open[text] = agent
        self.send(text, agent)

    def send(self, text: str, agent: str) -> None:
        """Send a text to an agent."""
        # The connection repeats what a killed server has not acknowledged. A client that does so has unique origin ids.
        ident = text.replace(" ", "-")
        origin_id = f"<origin-id xmlns='urn:xmpp:sid:0' id='of-the-asker-{ident}'/>"
        stanza = f"<message to='{agent}' type='chat' id='{ident}'><body>{text}</body>{origin_id}</message>"
        self.connection.send([OutboundMessage(agent, stanza)])

    def on_presence(self, presence: Presence) -> bool:
        return True

    def on_message(self, message: Element) -> None:
        if node := self._offline_messages.read_node(message):
            self._offline_messages.record_received(node, None)
        text, sender = message.findtext(BODY) or "", bare_jid(message.get("from", ""))
        if not QUESTION.fullmatch(text):
            return
        if message.get("type") == "error":
            self.tally.refused += self._open.pop(text, None) is not None
            return
        name, agent, number = text.split()
        if name != self.name or agent != sender:
            self.tally.crossed += 1
            return
        ids = self._answer_ids[text]
        if not ids:
            self.tally.answered += 1
            self._open.pop(text, None)
            if message.find(DELAY) is None or self._server_keeps_order:
                self.answers[agent].append(int(number))
        elif message.get("id", "") not in ids and len(ids) == 1:
            self.tally.twice += 1
        ids.add(message.get("id", ""))
        self.answered.set()

    @property
    def unanswered(self) -> list[str]:
        """The texts of the questions without an answer."""
        return list(self._open)


async def run_kills(server: XmppServer, directory: Path, faults: Sequence[str], seed: int) -> KillTally:
    """Break something again and again while people ask; then wait for the last answers. `server` runs."""
    rng, tally = random.Random(seed), KillTally(server.kind)
    async with AsyncExitStack() as stack:
        for_platform, for_askers = [await stack.enter_async_context(Tunnel(server)) for _ in range(2)]
        platform, jid = await stack.enter_async_context(
            run_platform(server, directory, agent="tests.chaos.agents:Echo", other_agents=_AGENTS - 1, port=for_platform.port)
        )
        agents = [jid, *platform.other_agents]
        askers = []
        for number in range(_ASKERS):
            asker = Asker(f"q{number}", await server.account(), server, for_askers.port, tally)
            await asker.connection.open()
            stack.push_async_callback(asker.close)
            askers.append(asker)
        if server.kind == "ejabberd":
            await asyncio.sleep(2.5)  # killed, ejabberd loses the accounts of its last two seconds
        asking = asyncio.create_task(_ask(askers, agents))
        scene = Scene(server, platform, (for_platform, for_askers), askers, rng)
        for name in faults:
            await _until_answered(askers)
            await asyncio.sleep(rng.uniform(0.0, 2 * _INTERVAL_S))  # faults come at any moment of a turn
            await FAULTS[name](scene)
            tally.faults[name] = tally.faults.get(name, 0) + 1
        await _until_answered(askers)
        asking.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while any(asker.unanswered for asker in askers):  # noqa: ASYNC110 - there is no event for the last answer
                    await asyncio.sleep(0.05)
        for asker in askers:
            for text in asker.unanswered:
                print(f"lost: {text}")
            lost_by_server = asker.questions_at_kill.intersection(asker.unanswered)
            tally.lost_by_server += len(lost_by_server)
            tally.lost += len(asker.unanswered) - len(lost_by_server)
    turns = _read_turns(directory)
    for asker in askers:
        for agent, answered in asker.answers.items():
            order = turns[asker.name, agent]
            tally.turns_out_of_order += count_late(order)
            tally.out_of_order += count_late([order.index(number) for number in answered])
    return tally


def _read_turns(directory: Path) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of the questions of each asker to each agent, in the order of their turns."""
    turns = defaultdict(list)
    with closing(sqlite3.connect(directory / "data" / "platform.db")) as database:
        for (body,) in database.execute("SELECT body FROM interactions ORDER BY id"):
            if QUESTION.fullmatch(text := json.loads(body)["input"]["query"]):
                name, agent, number = text.split()
                turns[name, agent].append(int(number))
    return turns


def count_late(numbers: Sequence[int]) -> int:
    """Count the numbers that come behind a larger one."""
    highest, late = -1, 0
    for number in numbers:
        late += number < highest
        highest = max(highest, number)
    return late


async def _ask(askers: Sequence[Asker], agents: Sequence[str]) -> None:
    """Let each asker ask each agent at an even rate, whether it has answered or not, until cancelled."""
    number = 0
    while True:
        number += 1
        for agent in agents:
            for asker in askers:
                asker.ask(agent, number)
        await asyncio.sleep(_INTERVAL_S)


async def _until_answered(askers: Sequence[Asker]) -> None:
    """Wait until every asker gets another answer: all have recovered from the last fault."""
    for asker in askers:
        asker.answered.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_S):
            for asker in askers:
                await asker.answered.wait()


def choose_faults(count: int, rng: random.Random) -> list[str]:
    """Choose faults: each kind once, if there is room, and then any."""
    names: list[Any] = list(FAULTS)
    rng.shuffle(names)
    return (names + [rng.choice(names) for _ in range(max(0, count - len(names)))])[:count]
