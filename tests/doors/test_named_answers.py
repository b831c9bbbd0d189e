"""An answer answers the question that it was given to, by each door: sent again, it answers no other one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from spade_coreason.doors.agents import DoorAgent
from spade_coreason.doors.backend import LocalAgentBackend
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.channel import DoorReply
from spade_coreason.storage import KnownRequest
from tests.support.all_doors import AllDoors, run_again, run_all_doors
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S
from tests.support.ways_to_answer import NamedChat, Shown, make_ways
from tests.support.worker_doors import run_far_doors

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_MAX_DELAY_S = 0.5
WAYS = make_ways("one")
every_way = pytest.mark.parametrize("way", WAYS)


async def answer(doors: AllDoors, way: str, shown: Shown, text: str) -> Shown:
    async with doors.http("website") as http:
        return await WAYS[way].answer(doors, http, shown, text)


async def ask(doors: AllDoors, way: str) -> Shown:
    async with doors.http("website") as http:
        return await WAYS[way].ask(doors, http, f"twice {way}")


class DelayedBackend(LocalAgentBackend):
    """An agent that lets another request answer first: between the look at a state and that at the questions."""

    def __init__(self, doors: AllDoors, give: Callable[[DoorAgent, Caller], Awaitable[object]]) -> None:
        [self._agent] = [each for each in doors.platform.door_agents.list_agents("mcp") if each.jid == doors.desk]
        repository = doors.platform.runners[doors.desk].repository
        super().__init__(doors.platform.door_agents.make_channel(doors.desk), lambda: repository, lambda: False)
        self._give = give
        self._has_looked = False
        self.has_given = False
        self._agent.backend = self

    async def is_allowed(self, caller: Caller) -> bool:
        if self._has_looked and not self.has_given:
            self.has_given = True
            await self._give(self._agent, caller)
        return await super().is_allowed(caller)

    async def fetch(self, caller: Caller, request_id: UUID, *, waits: bool = False) -> DoorReply | None:
        self._has_looked = True
        return await super().fetch(caller, request_id, waits=waits)

    async def find(self, caller: Caller, request_id: UUID) -> KnownRequest | None:
        self._has_looked = True
        return await super().find(caller, request_id)


@every_way
async def test_an_answer_that_is_sent_again_answers_no_other_question(prosody: XmppServer, tmp_path: Path, way: str) -> None:
    async with run_all_doors(prosody, tmp_path) as doors:
        first = await ask(doors, way)
        assert "Delete A?" in first.text
        second = await answer(doors, way, first, "yes")
        assert "Delete B?" in second.text
        repeated = await asyncio.gather(*(answer(doors, way, first, "yes") for _ in range(3)))
    async with run_again(doors, tmp_path) as doors:
        repeated.append(await answer(doors, way, first, "yes"))
        assert all("Delete B?" in each.text for each in repeated)
        last = await answer(doors, way, second, "no")
        assert "A: yes, B: no" in last.text
        assert "A: yes, B: no" in (await answer(doors, way, second, "no")).text


@every_way
async def test_a_question_that_is_answered_while_a_reply_is_read_is_none_to_another_person(
    prosody: XmppServer, tmp_path: Path, way: str
) -> None:
    async with run_all_doors(prosody, tmp_path) as doors:
        first = await ask(doors, way)
        second = await answer(doors, way, first, "yes")
    async with run_again(doors, tmp_path) as doors:
        backend = DelayedBackend(doors, lambda *_: answer(doors, way, second, "no"))
        assert "A: yes, B: no" in (await answer(doors, way, first, "yes")).text
        assert backend.has_given


async def test_a_call_whose_question_is_answered_meanwhile_shows_the_next_one(prosody: XmppServer, tmp_path: Path) -> None:
    async def give(agent: DoorAgent, caller: Caller) -> None:
        [question] = await agent.find_questions(caller)
        assert (await agent.answer(caller, question, "yes")).outcome == "taken"

    async with run_all_doors(prosody, tmp_path) as doors, doors.http("website") as http:
        arguments = {"request_id": (await ask(doors, "tool arguments")).state["request_id"]}
        backend = DelayedBackend(doors, give)
        reply = await doors.mcp(http, "tools/call", {"name": f"{doors.name()}_chat", "arguments": arguments})
        assert "Delete B?" in reply.text
        assert backend.has_given


@every_way
async def test_what_is_shown_to_one_caller_is_answered_by_no_other(prosody: XmppServer, tmp_path: Path, way: str) -> None:
    async with run_all_doors(prosody, tmp_path) as doors, doors.http("shop") as shop:
        first = await ask(doors, way)
        with suppress(AssertionError, LookupError):  # an error, or another conversation
            assert "Delete B?" not in (await WAYS[way].answer(doors, shop, first, "no")).text
        second = await answer(doors, way, first, "yes")
        assert "A: yes, B: no" in (await answer(doors, way, second, "no")).text


async def test_a_text_by_the_name_of_its_conversation_answers_only_what_was_shown(prosody: XmppServer, tmp_path: Path) -> None:
    way, body = NamedChat("named"), {"input": "twice", "conversation": "named", "background": True}
    async with run_all_doors(prosody, tmp_path) as doors, doors.http("website") as http:
        begun = (await http.post("/v1/responses", json={"model": doors.name(), **body})).json()
        questions = doors.platform.runners[doors.desk].repository.questions
        async with asyncio.timeout(TIMEOUT_S):
            while not await questions.has_open():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        assert (await way.ask(doors, http, "yes")).text == "done: yes"
        assert (await doors.fetch_response(http, begun["id"]))["output"][0]["content"][0]["text"].startswith("Delete A?")
        assert "Delete B?" in (await way.ask(doors, http, "no")).text
        # It was not shown again: this may be the same answer.
        assert "Delete B?" in (await way.ask(doors, http, "no")).text
        assert (await way.ask(doors, http, "yes")).text == "A: no, B: yes"
        # A later question of another request takes the same answer.
        assert "Delete A?" in (await way.ask(doors, http, "twice")).text
        assert "Delete B?" in (await way.ask(doors, http, "yes")).text


async def test_another_text_at_the_place_of_an_answered_question_is_a_request(prosody: XmppServer, tmp_path: Path) -> None:
    for way in ("chat", "responses"):
        directory = tmp_path / way
        directory.mkdir()
        async with run_all_doors(prosody, directory) as doors:
            first = await ask(doors, way)
            second = await answer(doors, way, first, "yes")
            assert (await answer(doors, way, first, "no")).text == "done: no"
            assert "A: yes, B: no" in (await answer(doors, way, second, "no")).text


async def test_the_state_of_a_call_names_one_question(prosody: XmppServer, tmp_path: Path) -> None:
    way = WAYS["tool forms"]
    async with run_all_doors(prosody, tmp_path) as doors, doors.http("website") as http:
        first = await way.ask(doors, http, "twice")
        state = first.state["state"]
        name, _, question = state.rpartition("/")
        for changed in (f"{name}/{uuid4()}", f"x/{question}", name, question, f"{state}0", "/"):
            with pytest.raises(AssertionError, match="requestState names no question"):
                await way.answer(doors, http, Shown("", {**first.state, "state": changed}), "yes")
        assert "Delete B?" in (await way.answer(doors, http, first, "yes")).text


@pytest.mark.timeout(3000)
@short_and_long_in_release("ANSWER_KILLS", 1, 5)
async def test_no_answer_counts_twice_after_kill_9_and_at_two_workers(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path, count: int
) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng = random.Random(SEED)
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as far:
        for number in range(count):
            ways = make_ways(str(number))
            first = {way: await ways[way].ask(running.far, far, f"twice {way} {number}") for way in ways}
            sent = asyncio.gather(
                *(ways[way].answer(running.far, far, first[way], "yes") for way in ways), return_exceptions=True
            )
            await asyncio.sleep(rng.random() * _MAX_DELAY_S)  # the instant of the kill is random, and nothing waits for it
            await running.owner.signal(signal.SIGKILL)
            await running.owner.start()
            await running.workers.wait_for(1, 1)
            await sent
            async with running.near.http("website") as near:
                for name, way in ways.items():
                    again = [(running.near, near), (running.far, far)] * 2
                    repeated = await asyncio.gather(*(way.answer(*doors, first[name], "yes") for doors in again))
                    assert [each.text for each in repeated if "Delete B?" not in each.text] == [], name
                    last = await way.answer(running.near, near, repeated[0], "no")
                    assert "A: yes, B: no" in last.text, name
