"""What people say to the platform instead of the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentTester, Policy
from spade_coreason.commands import HELP, command_in, without_escape
from spade_coreason.conversation import Rules

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class Notes:
    """Keeps what it is told in every way, and waits where it is told to."""

    def __init__(self, memory: AgentInteractionMemory) -> None:
        self.manifest = AgentDefinition.simple("notes", description="Keeps notes")
        self.memory = memory
        self.asked: list[str] = []
        self.working = asyncio.Event()

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        text = request.payload["query"]
        self.asked.append(text)
        if text == "wait":
            self.working.set()
            await asyncio.Event().wait()
        await self.memory.aadd_information(request.metadata["conversation_id"], f"told: {text}")
        await session.store("last", text)
        await response.markdown(f"noted: {text}")


def talking(**how: Any) -> AgentTester:
    return AgentTester(Notes, user=ALICE, **how)


def notes(t: AgentTester) -> Notes:
    agent = t.agent
    assert isinstance(agent, Notes)
    return agent


async def said(t: AgentTester, text: str, **how: Any) -> str:
    [answer] = await t.say(text, **how)
    return answer


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", "/help"),
        ("  /Forget   ME ", "/forget me"),
        ("//help", None),
        ("help", None),
        ("/a\n/b", None),
        ("", None),
        ("1/2", None),
        ("/", None),
        ("/me waves", None),
        ("/hlep", None),
    ],
)
def test_what_begins_with_the_name_of_a_command_is_one(text: str, command: str | None) -> None:
    assert command_in(text) == command


@pytest.mark.parametrize(
    ("text", "for_the_agent"), [("//help", "/help"), (" //Forget me", " /Forget me"), ("//x", "//x"), ("a//help", "a//help")]
)
def test_a_second_slash_makes_a_text_of_a_command(text: str, for_the_agent: str) -> None:
    assert without_escape(text) == for_the_agent


async def test_help_names_the_agent_and_every_command() -> None:
    async with talking() as t:
        text = await said(t, "/help")
        assert text.startswith("I am notes: Keeps notes")
        assert all(f"\n{name}   {what}" in text for name, what in HELP.items())


async def test_every_command_of_the_help_is_one_and_counts_as_no_turn() -> None:
    async with talking() as t:
        await t.say("one")
        for name in HELP:
            assert not (await said(t, name)).startswith(("There is no /", "I do not know"))
        assert notes(t).asked == ["one"]
        assert [record.interaction_count for record in await t.conversations()] == [1]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/history x", "I do not know that kind of /history. /help shows what there is."),
        ("/forget everybody", "I do not know that kind of /forget. /help shows what there is."),
    ],
)
async def test_a_command_with_something_unknown_says_so(text: str, answer: str) -> None:
    async with talking() as t:
        assert await said(t, text) == answer


async def test_two_slashes_reach_the_agent_as_one_and_programs_have_no_commands() -> None:
    async with talking() as t:
        assert await said(t, "//help") == "noted: /help"
        assert (await t.ask("/help")).text == "noted: /help"


async def test_commands_may_be_left_to_the_agent() -> None:
    async with talking(policy=Policy(commands=False)) as t:
        assert await said(t, "/help") == "noted: /help"
        assert await said(t, "//help") == "noted: //help"


async def test_history_memory_conversations_and_status_show_ones_own() -> None:
    async with talking() as t:
        for text in ("one", "two"):
            await t.say(text)
        await t.say("bobs", user=BOB)
        history = await said(t, "/history")
        assert "> one\nnoted: one" in history
        assert "> two\nnoted: two" in history
        assert "one" not in await said(t, "/history 1")
        assert await said(t, "/memory") == '- told: one\n- told: two\n- last: "two"'
        assert f"2 turns   active   {ALICE}_{AGENT}" in await said(t, "/conversations")
        assert await said(t, "/status") == "This conversation is active: 2 of 100 messages, 2 answered in all."
        for command in ("/history", "/memory", "/conversations"):
            assert "bob" not in await said(t, command)


async def test_new_begins_another_episode_and_what_is_remembered_stays() -> None:
    ends: list[tuple[str, str]] = []
    async with talking(on_conversation_end=(lambda name, reason: ends.append((name, reason)),)) as t:
        await t.say("one")
        assert (await said(t, "/new")).startswith("Your next message begins a new conversation.")
        assert ends == [(f"{ALICE}_{AGENT}", "completed")]
        await t.say("two")
        [record] = await t.conversations()
        assert (record.interaction_count, record.state) == (1, "active")
        assert "told: one" in await said(t, "/memory")


async def test_new_is_no_way_around_the_limit() -> None:
    async with talking(policy=Policy(rules=Rules(max_interactions=1))) as t:
        await t.say("one")
        await t.say("two")
        await said(t, "/new")
        assert await t.say("three") == []
        assert notes(t).asked == ["one"]
        assert "It goes on at" in await said(t, "/status")


async def test_forgetting_a_conversation_asks_first_and_leaves_the_others() -> None:
    async with talking() as t:
        await t.say("here")
        await t.say("there", thread="t")
        assert await said(t, "/forget") == (
            "This deletes what we said in this conversation and what I remember from it. Write `/forget yes` to do it."
        )
        assert "told: here" in await said(t, "/memory")
        assert await said(t, "/forget yes") == "Forgotten: 1 conversations, 1 turns, 1 variables, memories of 1 conversations."
        assert "told: here" not in await said(t, "/memory")
        assert await said(t, "/history") == "We said nothing yet."
        assert "told: there" in await said(t, "/memory", thread="t")


async def test_forget_me_deletes_everything_and_what_runs_elsewhere_is_dropped() -> None:
    async with talking() as t:
        await t.say("here")
        await t.say("there", thread="t")
        await t.say("bobs", user=BOB)
        running = asyncio.create_task(t.say("wait", thread="u"))
        await notes(t).working.wait()
        assert (await said(t, "/forget me")).endswith("Write `/forget me yes` to do it.")
        assert (
            await said(t, "/forget me yes") == "Forgotten: 3 conversations, 2 turns, 3 variables, memories of 2 conversations."
        )
        assert await running == []
        await t.settled()
        for thread in (None, "t", "u"):
            assert await said(t, "/memory", thread=thread) == "Nothing."
        assert "told: bobs" in await said(t, "/memory", user=BOB)
        store = t.runners[AGENT].store
        assert {row.owner for row in await store.conversations() if row.turns} == {BOB}
        await t.restart()
        await t.settled()
        assert t.unread(ALICE) == []
        assert await said(t, "again") == "noted: again"


async def test_cancel_stops_the_running_answer() -> None:
    async with talking() as t:
        assert await said(t, "/cancel") == "There is nothing to stop."
        running = asyncio.create_task(t.say("wait"))
        await notes(t).working.wait()
        t.send_stanza(f"<message to='{AGENT}' type='chat' id='c'><body>/cancel</body></message>")
        assert await running == ["Stopped."]
        assert await said(t, "after it") == "noted: after it"
        assert "wait" not in await said(t, "/history")


async def test_a_cancel_that_comes_again_does_not_stop_what_was_asked_after_it() -> None:
    async with talking() as t:
        for cancel in ("first", "second"):
            running = asyncio.create_task(t.say("wait"))
            await notes(t).working.wait()
            notes(t).working.clear()
            for ident in ("first", cancel):
                t.send_stanza(f"<message to='{AGENT}' type='chat' id='{ident}'><body>/cancel</body></message>")
                await asyncio.sleep(0.1)
            assert await running == ["Stopped."]


async def test_a_command_that_comes_twice_is_obeyed_once_and_its_answer_survives_a_restart() -> None:
    async with talking() as t:
        await t.say("one")
        forget = f"<message to='{AGENT}' type='chat' id='f'><body>/forget me yes</body></message>"
        for _ in range(3):
            t.send_stanza(forget)
        await t.settled()
        assert len(t.unread()) == 1
        await t.say("two")
        await t.restart()
        t.send_stanza(forget)
        await t.settled()
        assert "told: two" in await said(t, "/memory")
