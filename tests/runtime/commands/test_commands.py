"""Slash commands, which people send to the platform instead of the agent."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, AgentTester, ResponseHandler, Session
from spade_coreason.domain.forms.command_parser import find_command, remove_escape
from spade_coreason.runtime.commands.builtin import COMMANDS_FOR_EVERYBODY, COMMANDS_FOR_OPERATORS
from spade_coreason.storage import COMPACTION_VARIABLE, INTERNAL_VARIABLES
from spade_coreason.testing import Policy, Rules
from tests.support.clock import Clock
from tests.support.errors import ExpectedErrors
from tests.support.no_uploads import refuse_upload
from tests.support.stanzas import message

ROOT = Path(__file__).parents[3]
AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class StoringAgent:
    """Store each query in every way, and wait on request."""

    def __init__(self, memory: AgentInteractionMemory) -> None:
        self.manifest = AgentDefinition.simple("notes", description="Keeps notes")
        self.memory = memory
        self.asked: list[str] = []
        self.working = asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        text = request.payload["query"]
        self.asked.append(text)
        if text == "wait":
            self.working.set()
            await asyncio.Event().wait()
        await self.memory.aadd_information(request.metadata["conversation_id"], f"told: {text}")
        await session.store("last", text)
        if text == "lists":
            await session.store("list", ["a", 1], scope="conversation")
            await session.store("object", {"b": None}, scope="conversation")
        if text == "dates":
            await session.store("dates", {"told: dates": "Monday"})
            await session.store("place", "here", scope="conversation")
            await session.store("place", "everywhere", scope="person")
        if text == "fail":
            raise RuntimeError
        await response.markdown(f"noted: {text}")


def storing_tester(**options: Any) -> AgentTester:
    return AgentTester(StoringAgent, user=ALICE, **options)


def storing_agent(t: AgentTester) -> StoringAgent:
    agent = t.agent
    assert isinstance(agent, StoringAgent)
    return agent


async def single_reply(t: AgentTester, text: str, **options: Any) -> str:
    [answer] = await t.say(text, **options)
    return answer


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", "help"),
        ("  /Forget   ME ", "forget me"),
        ("/forget everybody", "forget"),
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
def test_a_text_that_begins_with_a_command_name_is_a_command(text: str, command: str | None) -> None:
    found = find_command(text, COMMANDS_FOR_EVERYBODY)
    assert (found[0].name if found else None) == command


@pytest.mark.parametrize(
    ("text", "for_the_agent"), [("//help", "/help"), (" //Forget me", " /Forget me"), ("//x", "//x"), ("a//help", "a//help")]
)
def test_a_second_slash_escapes_a_command(text: str, for_the_agent: str) -> None:
    assert remove_escape(text, COMMANDS_FOR_EVERYBODY) == for_the_agent


def test_the_tutorial_names_every_command() -> None:
    names = ("3-memory.md", "6-initiative.md", "7-go-live.md")
    pages = [(ROOT / "docs" / "tutorial" / page).read_text(encoding="utf-8") for page in names]
    named = {
        find_command(text, (*COMMANDS_FOR_EVERYBODY, *COMMANDS_FOR_OPERATORS))
        for text in re.findall(r"`(/[^`]+)`", "\n".join(pages))
    }
    assert {found[0] for found in named if found is not None} == {*COMMANDS_FOR_EVERYBODY, *COMMANDS_FOR_OPERATORS}


@pytest.mark.parametrize(
    ("text", "command"),
    [("!help", "help"), (" !Forget  ME", "forget me"), ("/help", "help"), ("!!help", None), ("!great", None), ("!/help", None)],
)
def test_another_character_may_begin_a_command(text: str, command: str | None) -> None:
    found = find_command(text, COMMANDS_FOR_EVERYBODY, ("/", "!"))
    assert (found[0].name if found else None) == command
    assert text.startswith("/") or find_command(text, COMMANDS_FOR_EVERYBODY) is None


async def test_a_command_begins_with_another_character_only_if_configured() -> None:
    async with storing_tester() as t:
        assert await single_reply(t, "!help") == "noted: !help"
        assert await single_reply(t, "!!help") == "noted: !!help"
        assert "write a space before the slash, or use your client's command menu." in await single_reply(t, " /help")
    async with storing_tester(policy=Policy(rules=Rules(command_prefixes=("/", "!")))) as t:
        text = await single_reply(t, "!help")
        assert text == await single_reply(t, "/help")
        assert "write a space before the slash, or ! instead of it, or use your client's command menu." in text
        assert await single_reply(t, "!history 0") == "turns must be 1 or more, not 0. Write `/history 50`."
        assert await single_reply(t, "!!help") == "noted: !help"
        assert await single_reply(t, "!great") == "noted: !great"


async def test_help_names_the_agent_and_every_command() -> None:
    async with storing_tester(policy=Policy(has_page=True)) as t:
        text = await single_reply(t, "/help")
        assert text.startswith("I am notes: Keeps notes")
        assert all(f"\n{command.text}   {command.description}" in text for command in COMMANDS_FOR_EVERYBODY)
        assert "/pause" not in text


async def test_without_the_page_there_is_no_command_for_it() -> None:
    async with storing_tester() as t:
        assert "/web" not in await single_reply(t, "/help")
        assert await single_reply(t, "/web") == "noted: /web"


async def test_every_command_of_the_help_works_and_counts_as_no_turn() -> None:
    async with storing_tester() as t:
        await t.say("one")
        for command in t.runners[AGENT].executor.commands.available_to(ALICE):
            assert not (await t.say(command.text))[0].startswith(("There is no /", "I do not know"))
        assert storing_agent(t).asked == ["one"]
        assert [record.interaction_count for record in await t.conversations()] == [1]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/history x", 'turns must be a number, not "x". Write `/history 50`.'),
        ("/history 0", "turns must be 1 or more, not 0. Write `/history 50`."),
        ("/status now", "I do not know that kind of /status. /help lists the commands."),
        (
            "/settings speed on",
            'There is no "speed". You can set language, thoughts, streaming, notifications, zone.'
            " Write `/settings streaming off`.",
        ),
        (
            "/settings streaming",
            "streaming is missing a value: whether you see an answer while it grows. Write `/settings streaming off`.",
        ),
        (
            "/settings streaming maybe",
            'streaming must be one of on, off, default, not "maybe". Write `/settings streaming off`.',
        ),
        (
            "/settings notifications rarely",
            'notifications must be one of on, off, default, not "rarely". Write `/settings streaming off`.',
        ),
        ("/settings zone Berlin", '"Berlin" is not a time zone. Write it like Europe/Berlin.'),
        ("/forget everybody", "I do not know that kind of /forget. /help lists the commands."),
    ],
)
async def test_a_command_with_something_unknown_says_so(text: str, answer: str) -> None:
    async with storing_tester() as t:
        assert await single_reply(t, text) == answer


async def test_two_slashes_reach_the_agent_as_one_and_programs_have_no_commands() -> None:
    async with storing_tester() as t:
        assert await single_reply(t, "//help") == "noted: /help"
        assert (await t.ask("/help")).text == "noted: /help"


async def test_commands_may_be_left_to_the_agent() -> None:
    async with storing_tester(policy=Policy(rules=Rules(commands=False))) as t:
        assert await single_reply(t, "/help") == "noted: /help"
        assert await single_reply(t, "//help") == "noted: //help"


async def test_history_memory_conversations_and_status_show_only_the_senders_data() -> None:
    async with storing_tester() as t:
        for text in ("one", "two"):
            await t.say(text)
        await t.say("bobs", user=BOB)
        history = await single_reply(t, "/history")
        assert "> one\nnoted: one" in history
        assert "> two\nnoted: two" in history
        assert "one" not in await single_reply(t, "/history 1")
        assert (
            await single_reply(t, "/memory") == '- told: one\n- told: two\n- last (here and for all your conversations): "two"'
        )
        assert "2 turns   active   no thread" in await single_reply(t, "/conversations")
        assert await single_reply(t, "/status") == (
            "This conversation is active: 2 of 100 messages, 2 answered in all."
            " You have sent 2 of 1,000,000 messages today (at most 60,000 a minute)."
        )
        for command in ("/history", "/memory", "/conversations"):
            assert "bob" not in await single_reply(t, command)


async def test_memory_and_history_are_readable_also_with_objects_and_failures(
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors("RuntimeError")
    async with storing_tester() as t:
        await t.say("lists")
        assert (await single_reply(t, "/memory")).endswith(
            '- last (here and for all your conversations): "lists"\n- list:\n  - a\n  - 1\n- object:\n  - b: null'
        )
        [apology] = await t.say("fail")
        assert (await single_reply(t, "/history 1")).endswith(f"> fail\n{apology}")


async def test_memory_lists_a_thing_once() -> None:
    async with storing_tester() as t:
        for text in ("dates", "dates", "other"):
            await t.say(text)
        assert await single_reply(t, "/memory") == (
            "- told: dates (dates: Monday, here and for all your conversations)\n"
            "- told: other\n"
            '- last (here and for all your conversations): "other"\n'
            '- place: "here"'
        )
        assert await single_reply(t, "/memory", thread="t") == (
            "- dates (for all your conversations):\n  - told: dates: Monday\n"
            '- last (for all your conversations): "other"\n'
            '- place (for all your conversations): "everywhere"'
        )


async def test_memory_shows_no_variable_of_the_platform() -> None:
    """A person whom the agent had introduced itself to was shown `spade_coreason.introduced`."""
    async with storing_tester() as t:
        await t.say("one")
        before = await single_reply(t, "/memory")
        for name in INTERNAL_VARIABLES - {COMPACTION_VARIABLE}:  # its summary is shown
            for scope, holder in (("person", ALICE), ("conversation", f"{ALICE}_{AGENT}")):
                await t.runners[AGENT].repository.save_variable(scope, holder, name, "true")
        assert await single_reply(t, "/memory") == before


async def test_new_begins_another_episode_and_keeps_the_memory() -> None:
    ends: list[tuple[str, str]] = []
    async with storing_tester(on_conversation_end=(lambda name, reason: ends.append((name, reason)),)) as t:
        await t.say("one")
        assert (await single_reply(t, "/new")).startswith("Your next message starts a new conversation.")
        assert ends == [(f"{ALICE}_{AGENT}", "completed")]
        await t.say("two")
        [record] = await t.conversations()
        assert (record.interaction_count, record.state) == (1, "active")
        assert "told: one" in await single_reply(t, "/memory")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_new_continues_a_conversation_that_has_reached_its_limit(is_restarted: bool) -> None:
    async with storing_tester(policy=Policy(rules=Rules(max_interactions=1))) as t:
        await t.say("one")
        [notice] = await t.say("two")
        assert notice.endswith("Write again in 5 min, or start a new conversation with /new.")
        assert await t.say("three") == []
        assert "It continues at" in await single_reply(t, "/status")
        await single_reply(t, "/new")
        assert "It continues at" not in await single_reply(t, "/status")
        if is_restarted:
            await t.restart()
        assert await t.say("four") == ["noted: four"]
        [record] = await t.conversations()
        assert (record.state, record.interaction_count) == ("active", 1)


async def test_an_ended_conversation_does_not_end_again() -> None:
    ends: list[tuple[str, str]] = []
    async with storing_tester(on_conversation_end=(lambda name, reason: ends.append((name, reason)),)) as t:
        await t.say("one")
        await single_reply(t, "/new")
        await single_reply(t, "/new")
        assert ends == [(f"{ALICE}_{AGENT}", "completed")]


async def test_forgetting_a_conversation_asks_first_and_leaves_the_others() -> None:
    async with storing_tester() as t:
        await t.say("here")
        await t.say("there", thread="t")
        assert await single_reply(t, "/forget") == (
            "This deletes this conversation and what I remember from it. Write `/forget yes` to do it."
        )
        assert "told: here" in await single_reply(t, "/memory")
        gone = "Deleted: 1 conversation, 1 turn, 1 variable, memory of 1 conversation."
        assert await single_reply(t, "/forget yes") == gone
        assert "told: here" not in await single_reply(t, "/memory")
        assert await single_reply(t, "/history") == "You have not written to me yet."
        assert "told: there" in await single_reply(t, "/memory", thread="t")
        assert await single_reply(t, "/memory") == '- last (for all your conversations): "there"'  # last, in the other one
        await single_reply(t, "/forget yes", thread="t")
        for _ in range(2):
            assert [await single_reply(t, "/memory", thread=thread) for thread in (None, "t")] == ["Nothing."] * 2
            await t.restart()
        for thread in ("one", "two"):
            await t.say("the same", thread=thread)
        await single_reply(t, "/forget yes", thread="one")
        assert await single_reply(t, "/memory") == '- last (for all your conversations): "the same"'  # in the other one


async def test_forget_me_deletes_everything_and_drops_running_turns() -> None:
    async with storing_tester() as t:
        await t.say("here")
        await t.say("there", thread="t")
        await t.say("bobs", user=BOB)
        running = asyncio.create_task(t.say("wait", thread="u"))
        await storing_agent(t).working.wait()
        assert (await single_reply(t, "/forget me")).endswith("Write `/forget me yes` to do it.")
        gone = "Deleted: 3 conversations, 2 turns, 3 variables, memory of 2 conversations."
        assert await single_reply(t, "/forget me yes") == gone
        assert await running == []
        await t.settled()
        for thread in (None, "t", "u"):
            assert await single_reply(t, "/memory", thread=thread) == "Nothing."
        assert "told: bobs" in await single_reply(t, "/memory", user=BOB)
        repository = t.runners[AGENT].repository
        assert {row.owner for row in await repository.list_conversations() if row.turns} == {BOB}
        await t.restart()
        await t.settled()
        assert t.unread(ALICE) == []
        assert await single_reply(t, "again") == "noted: again"


async def test_cancel_stops_the_running_answer() -> None:
    async with storing_tester() as t:
        assert await single_reply(t, "/cancel") == "There is nothing to stop."
        running = asyncio.create_task(t.say("wait"))
        await storing_agent(t).working.wait()
        t.send_stanza(f"<message to='{AGENT}' type='chat' id='c'><body>/cancel</body></message>")
        assert await running == ["Stopped."]
        assert await single_reply(t, "after it") == "noted: after it"
        assert "wait" not in await single_reply(t, "/history")


async def test_a_repeated_cancel_does_not_stop_later_questions() -> None:
    async with storing_tester() as t:
        for cancel in ("first", "second"):
            running = asyncio.create_task(t.say("wait"))
            await storing_agent(t).working.wait()
            storing_agent(t).working.clear()
            for stanza_id in ("first", cancel):
                t.send_stanza(message("/cancel", stanza_id, is_unique=True))
                await asyncio.sleep(0.1)
            assert await running == ["Stopped."]


async def test_a_cancel_with_an_id_from_last_week_does_not_stop_itself() -> None:
    clock = Clock()
    async with storing_tester(clock=clock) as t:
        for _ in range(2):
            t.send_stanza(f"<message to='{AGENT}' type='chat' id='c'><body>/cancel</body></message>")
            await t.settled()
            assert t.unread(ALICE) == ["There is nothing to stop."]
            assert await single_reply(t, "well") == "noted: well"
            clock.advance(days=8)


async def test_a_program_may_say_that_its_text_is_a_command() -> None:
    def command(text: str) -> AgentRequest:
        return AgentRequest(session_id=uuid4(), payload={"query": text}, metadata={"command": True})

    async with storing_tester() as t:
        await t.say("one")
        assert "> one\nnoted: one" in (await t.ask(command("/history 1"), user=ALICE)).text
        assert (await t.ask(command("/dance"))).text == "There is no such command. /help lists the commands."
        meant = "There is no such command. Did you mean /history? /help lists the commands."
        assert (await t.ask(command("/histroy 5"))).text == meant
        assert (await t.ask(command("/history"), user=BOB)).text == "You have not written to me yet."
        assert storing_agent(t).asked == ["one"]


async def test_export_sends_everything_about_a_person_as_a_file() -> None:
    async with storing_tester() as t:
        await t.say("one")
        await t.say("bobs", user=BOB)
        line, link = (await single_reply(t, "/export")).splitlines()
        assert line.endswith("Anyone who has the link can read it:")
        kept = t.uploaded[link]
        assert (kept.name, kept.type) == (f"agent-{datetime.now(UTC):%Y-%m-%d}.json", "application/json")
        everything = json.loads(kept.data)
        assert [turn["input"]["query"] for turn in everything["conversations"][0]["turns"]] == ["one"]
        assert "bob" not in kept.data.decode()


@pytest.mark.parametrize("turns", [1, 40])
async def test_a_program_gets_its_export_as_text_of_any_length_and_nothing_is_uploaded(turns: int) -> None:
    async with storing_tester() as t:
        for _ in range(turns):
            await t.say("a\u2028b\x85c " * 1500)
        answer = await t.ask(
            AgentRequest(session_id=uuid4(), payload={"query": "/export"}, metadata={"command": True}), user=ALICE
        )
        head, *parts = [str(event.data["content"]) for event in answer.events if event.type == "block.markdown"]
        assert re.fullmatch(r"Everything that I store about you \([\d,]+ bytes\):", head)
        everything = json.loads("\n".join(part.removeprefix("```\n").removesuffix("\n```") for part in parts))
        assert everything["person"] == ALICE
        assert len(everything["conversations"][0]["turns"]) == turns
        assert t.uploaded == {}


@pytest.mark.parametrize("turns", [1, 40])
async def test_without_a_file_service_the_export_is_text_or_one_clear_line(turns: int) -> None:
    async with storing_tester(upload=refuse_upload) as t:
        for _ in range(turns):
            await t.say("word " * 1500)
        head, *parts = await t.say("/export")
        if turns == 1:
            why = "I cannot send it as a file: there is no way to a server that keeps files."
            assert head == f"Everything that I store about you, as text. {why}"
            text = "\n".join(part.removeprefix("```\n").removesuffix("\n```") for part in parts)
            assert len(parts) > 1
            assert json.loads(text)["person"] == ALICE
        else:
            assert re.fullmatch(
                r"What I store about you is too long for messages \([\d,]+ bytes\), and I cannot send it as a file: "
                r"there is no way to a server that keeps files\.",
                head,
            )
            assert parts == []


async def test_a_confirmation_may_be_answered_with_no() -> None:
    async with storing_tester() as t:
        assert await single_reply(t, "/forget no") == "Nothing was deleted."
        assert await single_reply(t, "/forget perhaps") == "I do not know that kind of /forget. /help lists the commands."


async def test_a_duplicate_command_runs_once_also_after_a_restart() -> None:
    async with storing_tester() as t:
        await t.say("one")
        forget = message("/forget me yes", "f", is_unique=True)
        for _ in range(3):
            t.send_stanza(forget)
        await t.settled()
        assert len(t.unread()) == 1
        await t.say("two")
        await t.restart()
        t.send_stanza(forget)
        await t.settled()
        assert "told: two" in await single_reply(t, "/memory")
