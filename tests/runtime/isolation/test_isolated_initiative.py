"""An agent in a process of its own writes first: at times of its own, from its own tasks, and once when its turn runs again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, People, Response, Session, agent, every
from spade_coreason.runtime.initiative.decorator import EveryMark
from spade_coreason.runtime.isolation.description import AgentDescription, dump_when, load_when
from spade_coreason.testing import Isolation
from tests.runtime.isolation.scripted_agent import describe_error
from tests.support.clock import Clock
from tests.support.databases import SQLITE, read_rows
from tests.support.isolation import WARM_ISOLATION
from tests.support.wait import eventually

BOTH = pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "own process"])


def advance(t: AgentTester, clock: Clock, by: timedelta) -> None:
    """Advance the clock, and let the agent look at it."""
    clock.now += by
    initiative = t.runners[t.jid].initiative
    assert initiative is not None
    initiative.due_times.check()


class ReportingAgent:
    """Reports each morning to a person."""

    manifest = AgentDefinition.simple("reporting")

    def __init__(self, people: People, boss: str = "boss@localhost") -> None:
        self.people = people
        self.boss = boss

    async def startup(self) -> None:
        self.task = asyncio.create_task(self.greet())

    async def greet(self) -> None:
        """Notify outside of a turn, twice with one key."""
        sent = [await self.people.notify(self.boss, "good day", key="greeting") for _ in range(2)]
        assert sent[0].id == sent[1].id
        await self.people.notify(self.boss, (await self.people.outcome(sent[0].id)).person)

    @every("0 8 * * *", zone="Europe/Berlin", missed="skip")
    async def assist_daily(self, request: AgentRequest, session: Session, response: Response) -> None:
        count = await session.get("count", 0) + 1
        await session.store("count", count)
        await response.markdown("recorded, not sent")
        await self.people.notify(self.boss, f"report {count} of {request.metadata['due_at']} by {request.metadata['every']}")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Never asked here."""


@BOTH
async def test_a_method_runs_at_its_times_and_notifies(isolation: Isolation | None) -> None:
    clock = Clock(datetime(2026, 1, 5, 6, 59, tzinfo=UTC))
    async with AgentTester(ReportingAgent, isolation=isolation, clock=clock) as t:
        texts = sorted([str((await t.message("boss@localhost")).text) for _ in range(2)])
        assert texts == ["boss@localhost", "good day"]
        for number, day in ((1, 5), (2, 6)):
            advance(t, clock, timedelta(minutes=1) if number == 1 else timedelta(days=1))
            message = await t.message("boss@localhost")
            assert message.text == f"report {number} of 2026-01-{day:02}T07:00:00+00:00 by assist_daily"
        await t.settled()
        assert len(t.messages("boss@localhost")) == 4


@agent
async def reminding(request: AgentRequest, session: Session, response: Response) -> None:
    """Remind, and begin a job. The first run of the turn does not end."""
    if "due_at" in request.metadata:
        await response.markdown(f"due: {request.payload['query']}")
        return
    await session.remind(timedelta(hours=1), "tea")
    await session.later("work")
    if not request.metadata.get("redelivered"):
        await response.thought("hangs")
        await asyncio.Event().wait()
    await response.markdown("done")


@BOTH
async def test_a_turn_that_runs_again_reminds_once(isolation: Isolation | None, tmp_path: Path) -> None:
    clock, url = Clock(), f"{SQLITE}{tmp_path}/platform.db"
    async with AgentTester(reminding, isolation=isolation, clock=clock, database=url) as t:
        t.send("go", user="bob@localhost")
        await eventually(lambda: len(read_rows(url, "schedules")) == 1 and bool(read_rows(url, "steps")[1:]))
        await t.restart(grace_s=0)
        texts = sorted([str((await t.message("bob@localhost")).text) for _ in range(2)])
        assert texts == ["done", "due: work"]
        assert len(read_rows(url, "schedules")) == 1
        advance(t, clock, timedelta(hours=1))
        assert (await t.message("bob@localhost")).text == "due: tea"
        await t.settled()
        assert len(t.messages("bob@localhost")) == 3


IDENT, TEXT = "c0ffee00-0000-4000-8000-000000000000", '[{"block_type": "MARKDOWN", "content": "x"}]'
CRON = ["cron", "0 8 * * *"]
WRONG_CALLS: list[tuple[str, list[Any]]] = [
    ("people.notify", ["no id", "bob@localhost", None, TEXT, ""]),
    ("people.notify", [7, "bob@localhost", None, TEXT, ""]),
    ("people.notify", [IDENT, "bob@localhost/x", None, TEXT, ""]),
    ("people.notify", [IDENT, ["bob"], None, TEXT, ""]),
    ("people.notify", [IDENT, "bob@localhost", {"a": 1}, TEXT, ""]),
    ("people.notify", [IDENT, "bob@localhost", "t" * 2000, TEXT, ""]),
    ("people.notify", [IDENT, "bob@localhost", "a\0", TEXT, ""]),
    ("people.notify", [IDENT, "bob@localhost", None, "no blocks", ""]),
    ("people.notify", [IDENT, "bob@localhost", None, [7], ""]),
    ("people.notify", [IDENT, "bob@localhost", None, TEXT.replace("x", "x" * 2**18), ""]),
    ("people.notify", [IDENT, "bob@localhost", None, TEXT, "no address/"]),
    ("people.notify", [IDENT, "bob@localhost", None, TEXT, ["bob"]]),
    ("remind", [["after", 99_999_999_999, 0, 0], "x", "once"]),
    ("remind", [["at", "yesterday"], "x", "once"]),
    ("remind", [7, "x", "once"]),
    ("remind", [CRON, [7], "once"]),
    ("remind", [CRON, "x", {"a": 1}]),
    ("remind", [CRON, {"a": "x" * 2**20}, "once"]),
    ("later", [[7]]),
]


@agent
async def faulty(request: AgentRequest, session: Session, response: Response) -> None:
    """Send calls that its own session and people would refuse."""
    turn: Any = session._turn  # type: ignore[attr-defined]  # as faulty code may
    for name, args in WRONG_CALLS:
        error = await describe_error(turn.connection.call(name, *args, turn=0 if name.startswith("people") else turn.id))
        await response.markdown(f"{name}: {error.splitlines()[0]}")


async def test_wrong_calls_of_a_process_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    url = f"{SQLITE}{tmp_path}/platform.db"
    async with AgentTester(faulty, isolation=WARM_ISOLATION, database=url) as t:
        errors = (await t.ask("go")).text.split("\n\n")
        assert [line.partition(":")[0] for line in errors] == [name for name, _ in WRONG_CALLS]
        kinds = {line.split(": ")[1] for line in errors}
        assert kinds <= {"ValueError", "ValidationError", "TypeError", "AttributeError", "OverflowError"}, errors
        assert t.agent.process_status.restarts == 0  # type: ignore[attr-defined]
        await t.settled()
    assert (read_rows(url, "notifications"), read_rows(url, "schedules")) == ([], [])


PROPER = {"name": "daily", "cron": "0 8 * * *", "zone": None, "missed": "once"}


@pytest.mark.parametrize(
    "fault",
    [
        *({"name": name} for name in ("", "no name", "__init__()", "x" * 201, 7)),
        {"cron": "0 8"},
        {"zone": "Mars/Base"},
        {"missed": "never"},
    ],
)
def test_a_process_cannot_describe_methods_and_times_that_there_are_not(fault: dict[str, object]) -> None:
    described = AgentDescription("Agent", AgentDefinition.simple("a"), (), ()).dump()
    [loaded] = AgentDescription.load(described | {"every": [PROPER]}).every
    assert loaded == EveryMark("0 8 * * *", None, "once", "daily")
    with pytest.raises(ValueError, match="1 validation error"):
        AgentDescription.load(described | {"every": [PROPER | fault]})


@pytest.mark.parametrize(
    "when", [timedelta(1, 2, 3), timedelta(-1), datetime(2026, 1, 5, 6, 59, 1, 7, tzinfo=UTC), "0 8 * * *"]
)
def test_the_time_of_a_reminder_crosses_as_it_is(when: datetime | timedelta | str) -> None:
    assert load_when(dump_when(when)) == when


@pytest.mark.parametrize("data", [7, [], ["at"], ["at", 7], ["after", 1, 2], ["after", "1", 2, 3], ["cron", None], {"at": "x"}])
def test_what_is_no_time_of_a_reminder_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="this does not say when"):
        load_when(data)
