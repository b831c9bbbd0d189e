"""The traces of a person, and of a caller, that a key leaves are found and deleted, whatever the agent does with them."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Response, Session
from spade_coreason.domain.callers import caller_address
from spade_coreason.doors.agents import DoorAgent
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.channel import DoorReply
from spade_coreason.exceptions import ConfigError
from spade_coreason.storage import schema
from tests.support.door_agents import read_all
from tests.support.errors import ExpectedErrors
from tests.support.hosting import RunningPlatform
from tests.support.keeping_agents import Keeper
from tests.support.wait import TIMEOUT_S

DESK, ADA = "desk@localhost", "ada@localhost"
SECRET, OTHERS = "marzipan", "rhubarb"
EDITOR = Caller("editor", caller_address("editor"), ADA, frozenset({DESK}), names_users=False)
OTHER = Caller("other", caller_address("other"), "", frozenset({DESK}), names_users=False)


class Hoarder(Keeper):
    """Keep what it is told in every place that an agent has; fail, ask or wait if told to."""

    manifest = AgentDefinition.simple("desk")
    waiting = asyncio.Event()

    def __init__(self, memory: AgentInteractionMemory) -> None:
        super().__init__(memory)
        Hoarder.waiting = asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await super().assist(request, session, response)
        text = request.payload["query"]
        if "wait" in text:
            Hoarder.waiting.set()
            await asyncio.Event().wait()
        if "ask" in text:
            await response.ask_person(f"Is it {text}?")


class Running(RunningPlatform):
    """A running platform with an agent behind a door."""

    async def ask(self, caller: Caller, text: str, thread: str | None = None, **options: Any) -> DoorReply:
        return await self.agent.ask(caller, {"query": text}, thread=thread, **options)

    @property
    def agent(self) -> DoorAgent:
        [agent] = self.platform.door_agents.list_agents("openai")
        return agent

    async def rows(self, *texts: str) -> list[str]:
        def work(connection: Any) -> list[str]:
            return [
                f"{table.name}: {dict(row)}"
                for table in schema.DATA_TABLES
                for row in connection.execute(table.select()).mappings()
            ]

        assert self.platform.database is not None
        return [row for row in await self.platform.database.read(work) if any(text in row for text in texts)]


def run_platform(directory: Path) -> AbstractAsyncContextManager[Running]:
    agent = {"jid": DESK, "agent": "tests.doors.test_attacks_people:Hoarder", "doors": ["openai"]}
    return Running.start(directory, [agent], access={"allow": [ADA], "operators": [ADA]}, limits={"grace_s": 0.2})


async def fill(running: Running) -> DoorReply:
    """Let the key of Ada and another key ask in every way. Return the reply of a request of Ada's that runs."""
    for key, account in (("editor", ADA), ("other", "")):
        await running.call("keys.create", name=key, agents=["desk"], account=account)
    for caller, word in ((EDITOR, SECRET), (OTHER, OTHERS)):
        for text in ("tell", "fail", "ask"):
            await read_all(await running.ask(caller, f"{word} {text}", f"thread about {word}"))
    waits = await running.ask(EDITOR, f"{SECRET} wait", f"thread about {SECRET}")
    await asyncio.wait_for(Hoarder.waiting.wait(), TIMEOUT_S)
    return waits


async def test_nothing_is_left_of_what_the_key_of_a_person_asked(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: ")
    async with run_platform(tmp_path) as running:
        waits = await fill(running)
        others = await running.rows(OTHERS)
        exported = await running.call("people.export", person=ADA)
        [of_desk] = exported["agents"]
        [of_key] = of_desk["callers"]
        assert of_key["person"] == EDITOR.address
        for found in (of_key["conversations"], of_key["variables"], of_key["memories"], of_desk["audit"], of_desk["questions"]):
            assert SECRET in json.dumps(found)
        assert (of_desk["passed_on"]["conversations"], exported["may_hold_more"]) == ([], [])
        deleted = await running.call("people.delete", person=ADA)
        assert (deleted.is_complete, [kept.reason for kept in deleted.kept], deleted.may_hold_more) == (True, ["keys"], [])
        assert (await read_all(waits))[-1].type == "request.refused"
        left = await running.rows(SECRET, EDITOR.address, ADA)
        assert [row for row in left if not row.startswith("api_keys:")] == []
        assert await running.rows(OTHERS) == others
        assert (await read_all(await running.ask(EDITOR, "again")))[-1].type == "request.completed"


async def test_what_a_key_of_a_person_asked_is_deleted_with_the_person(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: ")
    async with run_platform(tmp_path) as running:
        (await fill(running)).close()
        for operation in ("people.delete", "people.export"):
            with pytest.raises(ConfigError, match=f"is a key of {ADA}, who has the data; name {ADA}"):
                await running.call(operation, person=EDITOR.address)


async def test_nothing_is_left_of_what_a_caller_asked(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: ")
    async with run_platform(tmp_path) as running:
        await fill(running)
        of_ada = await running.rows(SECRET)
        exported = await running.call("people.export", person=OTHER.address)
        assert OTHERS in json.dumps(exported)
        assert SECRET not in json.dumps(exported)
        assert (await running.call("people.delete", person=OTHER.address)).is_complete
        assert [row for row in await running.rows(OTHERS, OTHER.address) if not row.startswith("api_keys:")] == []
        assert await running.rows(SECRET) == of_ada
