"""Ad-hoc commands without a network: their sessions are bounded, and slow ones answer by a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    ConfigError,
    Policy,
    ResponseHandler,
    SessionHandle,
    command,
)
from spade_coreason.codec.adhoc import Action, CommandCall, CommandProblem, CommandStage
from spade_coreason.memory.session import Session
from spade_coreason.runtime.commands.dialogs import AdHocSessions
from spade_coreason.runtime.policy import RunnerTimings
from tests.support.wait import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class Slow:
    """Waits where it is told to, in a turn and in a command."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("slow")
        self.working = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await self.wait(session)
        await response.markdown("done")

    @command("wait", "wait for a sign")
    async def wait(self, session: SessionHandle) -> str | None:
        self.working.set()
        await self.may_go_on.wait()
        await session.store("waited", True)
        return "It came."

    @command("finish", "end the conversation")
    async def finish(self, session: Session) -> None:
        session.end()


class Desk:
    """Calls of people, one after the other."""

    def __init__(self, t: AgentTester, dialogues: AdHocSessions) -> None:
        self.t = t
        self.dialogues = dialogues
        agent = t.agent
        assert isinstance(agent, Slow)
        self.agent = agent

    async def call(
        self, node: str, session: str = "", action: Action = "execute", *, who: str = f"{ALICE}/phone", **form: str
    ) -> CommandStage | CommandProblem:
        return await self.dialogues.answer(CommandCall(who, "1", node, session, action, form or None))

    async def begin(self, node: str, who: str = f"{ALICE}/phone") -> str:
        stage = await self.call(node, who=who)
        assert isinstance(stage, CommandStage)
        assert stage.status == "executing"
        return stage.session

    async def text(self, node: str, **how: Any) -> str:
        return (await self.call(node, **how)).text

    async def lives(self, session: str, node: str = "forget-me", who: str = f"{ALICE}/phone") -> bool:
        """Whether a session is still there; it is canceled."""
        return isinstance(await self.call(node, session, "cancel", who=who), CommandStage)


@asynccontextmanager
async def desk(policy: Policy | None = None, **how: float) -> AsyncIterator[Desk]:
    async with AgentTester(Slow, policy=policy, user=ALICE) as t:
        dialogues = AdHocSessions(t.runners[AGENT], **how)
        yield Desk(t, dialogues)
        await dialogues.close()


async def test_a_flood_of_sessions_costs_only_whoever_floods() -> None:
    async with desk() as d:
        bobs = await d.begin("forget-me", f"{BOB}/phone")
        opened = [await d.begin("forget-me", f"{ALICE}/device{number}") for number in range(50)]
        lives = [await d.lives(name, who=f"{ALICE}/device{number}") for number, name in enumerate(opened)]
        assert lives == [False] * 40 + [True] * 10
        assert await d.lives(bobs, who=f"{BOB}/phone")


async def test_a_thousand_sessions_are_kept_in_all() -> None:
    async with desk() as d:
        first = await d.begin("forget-me", "p0@localhost/x")
        second = await d.begin("forget-me", "p1@localhost/x")
        for number in range(2, 1001):
            await d.begin("forget-me", f"p{number}@localhost/x")
        assert not await d.lives(first, who="p0@localhost/x")
        assert await d.lives(second, who="p1@localhost/x")


async def test_a_session_ends_by_itself() -> None:
    async with desk(session_timeout_s=0.0) as d:
        session = await d.begin("forget-me")
        await asyncio.sleep(0)
        answer = await d.call("forget-me", session, "complete", sure="1")
        assert isinstance(answer, CommandProblem)
        assert answer.detail == "bad-sessionid"


async def test_a_form_may_be_sent_with_the_first_call_and_only_once() -> None:
    async with desk() as d:
        assert await d.text("settings", streaming="off") == "language: default\nthoughts: default\nstreaming: off"
        session = await d.begin("forget-me")
        both = await asyncio.gather(*(d.call("forget-me", session, "complete", sure="1") for _ in range(2)))
        assert sorted(type(answer).__name__ for answer in both) == ["CommandProblem", "CommandStage"]


async def test_what_takes_long_is_answered_by_a_message_and_eight_at_once_are_enough() -> None:
    async with desk(reply_timeout_s=0.5) as d:
        assert await d.text("wait") == "This takes a while; the answer follows as a message."
        assert d.t.unread() == []
        d.agent.may_go_on.set()
        await eventually(lambda: d.t.unread() == ["It came."])
        assert "waited: true" in await d.text("memory")
    async with desk() as d:
        calls = [asyncio.create_task(d.call("wait", who=f"{ALICE}/{number}")) for number in range(9)]
        await d.agent.working.wait()
        refused = await calls[-1]
        assert isinstance(refused, CommandProblem)
        assert refused.condition == "resource-constraint"
        assert await d.text("status", who=f"{BOB}/x") == "We have not spoken yet."
        d.agent.may_go_on.set()
        assert {(await one).text for one in calls[:8]} == {"It came."}


async def test_a_command_that_changes_a_conversation_waits_for_its_turn_there() -> None:
    async with desk() as d:
        turn = asyncio.create_task(d.t.say("work"))
        await d.agent.working.wait()
        new = asyncio.create_task(d.call("new"))
        assert "is active: 1 of 100 messages, 0 answered" in await d.text("status")
        assert not new.done()
        d.agent.may_go_on.set()
        assert await turn == ["done"]
        assert (await new).text.startswith("Your next message begins")
        assert "is completed: 1 of 100 messages, 1 answered" in await d.text("status")


async def test_forget_me_from_the_menu_drops_what_runs_and_what_waits_in_a_pause() -> None:
    async with desk(Policy(operators=frozenset({BOB}))) as d:
        d.agent.may_go_on.set()
        await d.t.say("one")
        await d.t.say("two", thread="t")
        assert (await d.text("pause", who=f"{BOB}/x")).startswith("Paused")
        d.t.send("three")
        waiting = asyncio.create_task(d.call("wait", conversation="t"))
        await eventually(lambda: d.t.runners[AGENT].count_queued(ALICE) == 2)
        session = await d.begin("forget-me")
        done = await d.call("forget-me", session, "complete", sure="1")
        assert done.text.startswith("Forgotten: 2 conversations, 2 turns")
        assert await d.text("resume", who=f"{BOB}/x") == "I go on."
        await d.t.settled()
        assert d.t.unread() == ["I am paused at the moment; your message is kept."]
        assert (await waiting).text == "This is not done: what it was about is gone."
        assert await d.text("conversations") == "There are none."


async def test_what_a_turn_does_that_cannot_be_stopped_is_forgotten_too() -> None:
    class Stubborn(Slow):
        at_work = 0

        async def wait(self, session: SessionHandle) -> str | None:
            await session.store("secret", "mine")
            self.at_work += 1
            while not self.may_go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await super().wait(session)
            return "It came."

        wait = command("wait", "wait for a sign")(wait)

    async with AgentTester(Stubborn, user=ALICE, policy=Policy(timings=RunnerTimings(cancel_grace_s=0.05))) as t:
        for thread, text in (("a", "work"), ("b", "/wait")):
            t.send(text, thread=thread)
        await eventually(lambda: t.agent.at_work == 2)  # type: ignore[attr-defined]
        assert (await t.say("/forget me yes"))[0].startswith("Forgotten: 3 conversations")
        t.agent.may_go_on.set()  # type: ignore[attr-defined]  # of this test's own agent
        await t.settled()
        assert [record.conversation_id for record in await t.conversations()] == []
        assert await t.runners[AGENT].repository.load_variables("conversation", "a") == {}
        assert t.unread() == []


async def test_an_agents_commands_pile_up_in_a_pause_no_more_than_messages() -> None:
    async with desk(Policy(queue=3, operators=frozenset({BOB})), reply_timeout_s=0.3) as d:
        await d.text("pause", who=f"{BOB}/x")
        said = [await d.text("wait") for _ in range(4)]
        assert said[2:] == [
            "This takes a while; the answer follows as a message.",
            "Too much of yours waits already; please try again later.",
        ]
        assert await d.begin("forget-me")


async def test_a_command_may_end_the_conversation_and_say_nothing() -> None:
    async with desk(Policy(commands=False)) as d:
        d.agent.may_go_on.set()
        await d.t.say("one")
        assert await d.text("finish") == "Done."
        assert [record.state for record in await d.t.conversations()] == ["completed"]
        await d.t.say("two")
        assert await d.t.say("/finish") == ["Done."]
        assert [record.state for record in await d.t.conversations()] == ["completed"]
        assert await d.t.say("/help") == ["done"], "the platform's commands are off"


async def test_a_name_that_is_taken_is_a_clear_error() -> None:
    class Greedy(Slow):
        @command("help", "all the help there is")
        async def help(self, session: SessionHandle) -> str:
            return ""

    with pytest.raises(ConfigError, match=r'Greedy: the command "help" is the platform\'s; give it another name'):
        async with AgentTester(Greedy):
            pass


def test_every_action_of_the_xep_is_known() -> None:
    assert get_args(Action) == ("execute", "next", "prev", "complete", "cancel")
