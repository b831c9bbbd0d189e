"""Ad-hoc commands without a network: sessions are bounded, and slow commands reply by a message."""

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
    ResponseHandler,
    Session,
    SessionHandle,
    command,
)
from spade_coreason.domain.forms.adhoc import Action, CommandCall, CommandProblem, CommandStage
from spade_coreason.runtime.commands.dialogs import AdHocSessions
from spade_coreason.testing import PlatformLimits, Policy, Rules, RunnerTimings
from tests.support.wait import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class WaitingAgent:
    """Wait for the test in each turn and in the command `wait`."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("slow")
        self.working = asyncio.Event()
        self.release = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await self.wait(session)
        await response.markdown("done")

    @command("wait", "wait for a sign")
    async def wait(self, session: SessionHandle) -> str | None:
        self.working.set()
        await self.release.wait()
        await session.store("waited", True)
        return "It came."

    @command("finish", "end the conversation")
    async def finish(self, session: Session) -> None:
        session.end()


class AdHocClient:
    """Send command calls of people to an agent."""

    def __init__(self, t: AgentTester, sessions: AdHocSessions) -> None:
        self.t = t
        self.sessions = sessions
        agent = t.agent
        assert isinstance(agent, WaitingAgent)
        self.agent = agent

    def patient(self) -> AdHocClient:
        """Return one that waits longer for the reply of a command."""
        return AdHocClient(self.t, AdHocSessions(self.t.runners[AGENT].executor, self.t.runners[AGENT].languages))

    async def call(
        self, node: str, session: str = "", action: Action = "execute", *, who: str = f"{ALICE}/phone", **form: str
    ) -> CommandStage | CommandProblem:
        return await self.sessions.answer(CommandCall(who, "1", node, session, action, form or None))

    async def begin(self, node: str, who: str = f"{ALICE}/phone") -> str:
        stage = await self.call(node, who=who)
        assert isinstance(stage, CommandStage)
        assert stage.status == "executing"
        return stage.session

    async def text(self, node: str, **options: Any) -> str:
        return (await self.call(node, **options)).text

    async def cancel(self, session: str, node: str = "forget-me", who: str = f"{ALICE}/phone") -> bool:
        """Cancel a session, and tell if it still existed."""
        return isinstance(await self.call(node, session, "cancel", who=who), CommandStage)


@asynccontextmanager
async def open_adhoc_client(policy: Policy | None = None, **options: float) -> AsyncIterator[AdHocClient]:
    async with AgentTester(WaitingAgent, policy=policy, user=ALICE) as t:
        sessions = AdHocSessions(t.runners[AGENT].executor, t.runners[AGENT].languages, **options)
        yield AdHocClient(t, sessions)
        await sessions.close()


async def test_a_flood_of_sessions_ends_only_sessions_of_its_sender() -> None:
    async with open_adhoc_client() as client:
        bobs = await client.begin("forget-me", f"{BOB}/phone")
        opened = [await client.begin("forget-me", f"{ALICE}/device{number}") for number in range(50)]
        existed = [await client.cancel(name, who=f"{ALICE}/device{number}") for number, name in enumerate(opened)]
        assert existed == [False] * 40 + [True] * 10
        assert await client.cancel(bobs, who=f"{BOB}/phone")


async def test_at_most_a_thousand_sessions_are_kept() -> None:
    async with open_adhoc_client() as client:
        first = await client.begin("forget-me", "p0@localhost/x")
        second = await client.begin("forget-me", "p1@localhost/x")
        for number in range(2, 1001):
            await client.begin("forget-me", f"p{number}@localhost/x")
        assert not await client.cancel(first, who="p0@localhost/x")
        assert await client.cancel(second, who="p1@localhost/x")


async def test_a_session_times_out() -> None:
    async with open_adhoc_client(session_timeout_s=0.0) as client:
        session = await client.begin("forget-me")
        await asyncio.sleep(0)
        answer = await client.call("forget-me", session, "complete", sure="1")
        assert isinstance(answer, CommandProblem)
        assert answer.detail == "bad-sessionid"


async def test_a_form_may_be_sent_with_the_first_call_and_only_once() -> None:
    async with open_adhoc_client() as client:
        assert await client.text("settings", streaming="off") == (
            "language: default (that of your messages)\nthoughts: default (only the tools that I use)\nstreaming: off\n"
            "notifications: default (on)\nzone: default (UTC)"
        )
        assert (await client.text("settings", notifications="off", zone="Europe/Berlin")).endswith(
            "\nnotifications: off\nzone: Europe/Berlin"
        )
        session = await client.begin("forget-me")
        both = await asyncio.gather(*(client.call("forget-me", session, "complete", sure="1") for _ in range(2)))
        assert sorted(type(answer).__name__ for answer in both) == ["CommandProblem", "CommandStage"]


async def test_a_slow_command_replies_by_a_message_and_at_most_eight_run_at_once() -> None:
    async with open_adhoc_client(reply_timeout_s=0.5) as client:
        assert await client.text("wait") == "This takes a while. The answer follows as a message."
        assert client.t.unread() == []
        client.agent.release.set()
        await eventually(lambda: client.t.unread() == ["It came."])
        assert "waited (here and for all your conversations): true" in await client.patient().text("memory")
    async with open_adhoc_client() as client:
        calls = [asyncio.create_task(client.call("wait", who=f"{ALICE}/{number}")) for number in range(9)]
        await client.agent.working.wait()
        refused = await calls[-1]
        assert isinstance(refused, CommandProblem)
        assert refused.condition == "resource-constraint"
        assert (await client.text("status", who=f"{BOB}/x")).startswith("You have not written to me yet.")
        client.agent.release.set()
        assert {(await one).text for one in calls[:8]} == {"It came."}


async def test_a_command_that_changes_a_conversation_waits_for_its_turn_there() -> None:
    async with open_adhoc_client() as client:
        turn = asyncio.create_task(client.t.say("work"))
        await client.agent.working.wait()
        await client.t.runners[AGENT].repository.inbox.flush()  # until then the conversation is in memory only
        new = asyncio.create_task(client.call("new"))
        assert "is active: 1 of 100 messages, 0 answered" in await client.text("status")
        assert not new.done()
        client.agent.release.set()
        assert await turn == ["done"]
        assert (await new).text.startswith("Your next message starts")
        assert "is completed: 1 of 100 messages, 1 answered" in await client.text("status")


async def test_forget_me_drops_running_and_queued_work_in_a_pause() -> None:
    async with open_adhoc_client(Policy(operators=frozenset({BOB}))) as client:
        client.agent.release.set()
        await client.t.say("one")
        await client.t.say("two", thread="t")
        assert (await client.text("pause", who=f"{BOB}/x")).startswith("Paused")
        client.t.send("three")
        waiting = asyncio.create_task(client.call("wait", conversation="t"))
        await eventually(lambda: client.t.runners[AGENT].mailboxes.count_queued(ALICE) == 2)
        session = await client.begin("forget-me")
        done = await client.call("forget-me", session, "complete", sure="1")
        assert done.text.startswith("Deleted: 2 conversations, 2 turns")
        assert await client.text("resume", who=f"{BOB}/x") == "I continue."
        await client.t.settled()
        assert client.t.unread() == ["I am paused at the moment. Your message is stored, and I answer it later."]
        assert (await waiting).text == "I did not do this, because the conversation was deleted."
        assert await client.text("conversations") == "There are none."


async def test_forget_me_erases_the_data_of_a_turn_that_ignores_cancellation() -> None:
    class Stubborn(WaitingAgent):
        at_work = 0

        async def wait(self, session: SessionHandle) -> str | None:
            await session.store("secret", "mine")
            self.at_work += 1
            while not self.release.is_set():
                with suppress(asyncio.CancelledError):
                    await super().wait(session)
            return "It came."

        wait = command("wait", "wait for a sign")(wait)

    async with AgentTester(Stubborn, user=ALICE, policy=Policy(timings=RunnerTimings(cancel_grace_s=0.05))) as t:
        for thread, text in (("a", "work"), ("b", "/wait")):
            t.send(text, thread=thread)
        await eventually(lambda: t.agent.at_work == 2)  # type: ignore[attr-defined]
        assert (await t.say("/forget me yes"))[0].startswith("Deleted: 3 conversations")
        t.agent.release.set()  # type: ignore[attr-defined]  # of this test's own agent
        await t.settled()
        assert [record.conversation_id for record in await t.conversations()] == []
        assert await t.runners[AGENT].repository.load_variables("conversation", "a") == {}
        assert t.unread() == []


async def test_commands_of_an_agent_are_limited_in_a_pause_like_messages() -> None:
    async with open_adhoc_client(
        Policy(limits=PlatformLimits(queue=3), operators=frozenset({BOB})), reply_timeout_s=0.3
    ) as client:
        await client.patient().text("pause", who=f"{BOB}/x")
        said = [await client.text("wait") for _ in range(3)] + [await client.patient().text("wait")]
        assert said[2:] == [
            "This takes a while. The answer follows as a message.",
            "This conversation already has 3 messages waiting. New ones are not accepted until some are answered.",
        ]
        assert await client.begin("forget-me")


async def test_a_command_may_end_the_conversation_and_say_nothing() -> None:
    async with open_adhoc_client(Policy(rules=Rules(commands=False))) as client:
        client.agent.release.set()
        await client.t.say("one")
        assert await client.text("finish") == "Done."
        assert [record.state for record in await client.t.conversations()] == ["completed"]
        await client.t.say("two")
        assert await client.t.say("/finish") == ["Done."]
        assert [record.state for record in await client.t.conversations()] == ["completed"]
        assert await client.t.say("/help") == ["done"], "the platform's commands are off"


async def test_a_command_name_of_the_platform_is_a_clear_error() -> None:
    class ConflictingAgent(WaitingAgent):
        @command("help", "all the help there is")
        async def help(self, session: SessionHandle) -> str:
            return ""

    with pytest.raises(ConfigError, match=r'ConflictingAgent: the command "help" is the platform\'s; give it another name'):
        async with AgentTester(ConflictingAgent):
            pass


def test_every_action_of_the_xep_is_known() -> None:
    assert get_args(Action) == ("execute", "next", "prev", "complete", "cancel")
