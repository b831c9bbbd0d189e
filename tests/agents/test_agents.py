"""The ready-made agents, in a platform without a network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agents.echo import EchoAgent
from agents.notes import NotesAgent
from agents.relay import RelayAgent
from agents.round_table import RoundTableAgent
from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ConfigError, ResponseHandler, SessionHandle, agent
from tests.support.clock import Clock

ALICE = "alice@localhost"
BOB = "bob@localhost"
PLANE = "my plane leaves on Friday at 7"
ROOT = Path(__file__).parents[2]
# `agents` is a package in a checkout only; in a wheel and in an image they are in the package.
NAME_IN_A_CHECKOUT = re.compile(r"(?<![\w.])agents\.(echo|notes|relay|assistant|round_table):")


def notes_tester(**options: Any) -> AgentTester:
    return AgentTester(NotesAgent, jid="notes@localhost", user=ALICE, **options)


def relay_tester(peers: Mapping[str, Any], allow: tuple[str, ...] | None = None, **options: Any) -> AgentTester:
    agent_options = {"ask": list(peers), **options}
    return AgentTester(RelayAgent, jid="relay@localhost", peers=peers, options=agent_options, user=ALICE, allow=allow)


@pytest.mark.parametrize(
    "pattern", ["README.md", "docs/**/*.md", "config/*.yaml", "docker/*.yaml", "spade_coreason/c*/**/*.py"]
)
def test_what_users_read_names_the_ready_made_agents_by_the_package(pattern: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files
    assert not [file for file in files if NAME_IN_A_CHECKOUT.search(file.read_text(encoding="utf-8"))]


async def test_echo_thinks_and_then_streams_word_by_word() -> None:
    async with AgentTester(EchoAgent) as t:
        answer = await t.ask("one two  three")
        assert [event.type for event in answer.events] == [
            "block.thought",
            "stream.start",
            *["stream.chunk"] * 3,
            "stream.end",
            "request.completed",
        ]
        assert answer.text == "one two  three"


class DiscardingHandler:
    """A response handler that discards everything and never waits."""

    async def thought(self, content: str) -> None: ...
    async def create_stream(self, title: str) -> DiscardingHandler:
        return self

    async def write(self, chunk: str) -> None: ...
    async def close(self) -> None: ...


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
async def test_echo_waits_between_words_only_where_it_is_told_to(delay_s: float) -> None:
    request = AgentRequest(session_id=uuid4(), payload={"query": "one two"})
    handler: Any = DiscardingHandler()
    coroutine: Any = EchoAgent(AgentDefinition.simple("echo"), delay_s=delay_s).assist(request, handler, handler)
    if delay_s:
        assert coroutine.send(None) is not None  # it waits
        coroutine.close()
    else:
        with pytest.raises(StopIteration):
            coroutine.send(None)


@pytest.mark.parametrize("delay_s", ["abc", -1, None])
async def test_echo_says_what_is_wrong_with_its_option(delay_s: Any) -> None:
    with pytest.raises(ConfigError, match="delay_s must be a number of seconds"):
        async with AgentTester(EchoAgent, options={"delay_s": delay_s}):
            pass


async def test_echo_keeps_lines_and_spaces() -> None:
    async with AgentTester(EchoAgent) as t:
        assert await t.say("one\n\n  two  three") == ["one\n\n  two  three"]


async def test_echo_says_to_a_person_what_they_said() -> None:
    async with AgentTester(EchoAgent, options={"delay_s": 0.001}) as t:
        assert [text.strip() for text in await t.say("one two")] == ["one two"]


@pytest.mark.parametrize("payload", [{}, {"query": None}, {"query": 7}, {"text": "x"}])
@pytest.mark.parametrize("agent_class", [EchoAgent, NotesAgent])
async def test_a_payload_without_a_question_is_answered(agent_class: Any, payload: dict[str, Any]) -> None:
    async with AgentTester(agent_class) as t:
        assert (await t.ask(payload)).events[-1].type == "request.completed"


async def test_notes_say_what_they_cannot_remember() -> None:
    async with notes_tester() as t:
        [said] = await t.say("x" * 65_537)
        assert said.startswith("I cannot remember this: information has 65,537 bytes (limit: 65,536); store the text")
        assert await t.say("list") == ["You have not told me anything yet."]


async def test_notes_confirm_what_they_remember_and_answer_after_a_restart() -> None:
    clock = Clock()
    async with notes_tester(clock=clock) as t:
        assert await t.say(PLANE) == [f'✓ I\'ll remember: "{PLANE}".']
        assert await t.say("my train leaves at noon") != []
        clock.advance(days=1)
        await t.restart()
        assert await t.say("when does my plane leave?") == [f'You told me on 20 November: "{PLANE}".']


@pytest.mark.parametrize("question", ["When does my plane leave", "is my plane late", "plane, friday?", "what about planes"])
async def test_notes_recognise_questions(question: str) -> None:
    async with notes_tester(clock=Clock()) as t:
        await t.say(PLANE)
        assert await t.say(question) == [f'You told me on 20 November: "{PLANE}".']


@pytest.mark.parametrize(
    "statement", ["do the dishes", "Will arrives at 5", "can opener: drawer", "whatever it is", "forgetful"]
)
async def test_notes_store_statements_that_resemble_questions(statement: str) -> None:
    async with notes_tester() as t:
        assert await t.say(statement) == [f'✓ I\'ll remember: "{statement}".']


async def test_notes_say_that_they_do_not_know() -> None:
    async with notes_tester() as t:
        assert await t.say("when does my plane leave?") == ["I don't know. You did not tell me."]
        await t.say("the milk is in the fridge")
        assert await t.say("when does my plane leave?") == ["I don't know. You did not tell me."]


@pytest.mark.parametrize("command", ["list", "What do you know?", "show"])
async def test_notes_list_what_they_know(command: str) -> None:
    async with notes_tester() as t:
        assert await t.say(command) == ["You have not told me anything yet."]
        await t.say("one thing")
        await t.say("another")
        assert await t.say(command) == ["- one thing\n- another"]


async def test_a_fact_sent_twice_is_remembered_once() -> None:
    async with notes_tester() as t:
        assert await t.say("one thing") == await t.say("one thing")
        assert await t.say("list") == ["- one thing"]


async def test_notes_forget_one_thing_or_everything() -> None:
    async with notes_tester() as t:
        for text in (PLANE, "my train leaves at noon", "milk"):
            await t.say(text)
        assert await t.say("forget plane") == [f"Deleted:\n- {PLANE}"]
        assert await t.say("list") == ["- my train leaves at noon\n- milk"]
        assert await t.say("forget plane") == ['I know nothing about "plane".']
        assert await t.say("forget everything") == ["Deleted:\n- my train leaves at noon\n- milk"]
        await t.restart()
        assert await t.say("list") == ["You have not told me anything yet."]


@pytest.mark.timeout(30)  # the pattern was quadratic, and this text took minutes
async def test_notes_forget_by_a_long_text_without_delay() -> None:
    async with notes_tester() as t:
        await t.say("milk")
        words = f"a{'!' * 60_000}a"
        assert await t.say(f"forget {words}") == [f'I know nothing about "{words}".']
        assert await t.say("forget !!") == ['I know nothing about "!".']
        assert await t.say("forget  milk, please?!") == ["Deleted:\n- milk"]


@pytest.mark.parametrize("command", ["help", "HELP"])
async def test_notes_help(command: str) -> None:
    async with notes_tester() as t:
        assert "forget everything" in (await t.say(command))[0]


async def test_notes_do_not_confuse_similar_facts() -> None:
    async with notes_tester() as t:
        await t.say("my cat is called Miez")
        assert await t.say("what is my dog called?") == ["I don't know. You did not tell me."]
        assert '"my cat is called Miez"' in (await t.say("what is my cat called?"))[0]


async def test_notes_keep_nothing_of_a_forgotten_conversation() -> None:
    async with notes_tester(clock=Clock()) as t:
        await t.say(PLANE)
        assert re.fullmatch(
            rf"- {PLANE} \(dates: [\d:T+-]+, here and for all your conversations\)", (await t.say("/memory"))[0]
        )
        await t.say("elsewhere", thread="t")
        assert "elsewhere" not in (await t.say("/memory"))[0]
        await t.say("/forget yes")
        assert PLANE not in (await t.say("/memory"))[0]
        await t.say("/forget yes", thread="t")
        assert await t.say("/memory") == ["Nothing."]


async def test_notes_of_people_and_threads_are_separate() -> None:
    async with notes_tester() as t:
        await t.say(PLANE)
        assert await t.say("when does my plane leave?", user=BOB) == ["I don't know. You did not tell me."]
        assert await t.say("when does my plane leave?", thread="work") == ["I don't know. You did not tell me."]
        assert await t.say("list", user=BOB) == ["You have not told me anything yet."]


async def test_relay_asks_all_and_names_each() -> None:
    async with relay_tester({"echo@localhost": EchoAgent, "notes@localhost": NotesAgent}) as t:
        assert await t.say("milk") == ['echo: milk\n\nnotes: ✓ I\'ll remember: "milk".']


async def test_two_people_behind_relay_never_see_each_others_notes() -> None:
    async with relay_tester({"echo@localhost": EchoAgent, "notes@localhost": NotesAgent}) as t:
        await t.say(PLANE, user=ALICE)
        assert (await t.say("when does my plane leave?", user=BOB))[0].endswith("notes: I don't know. You did not tell me.")
        assert PLANE in (await t.say("when does my plane leave?", user=ALICE))[0]
        assert "not told me anything" in (await t.ask("list", user=BOB, thread="t")).text
        # The same thread id does not help, nor does asking notes directly.
        assert "not told me anything" in (await t.ask("list", user=BOB, to="notes@localhost")).text


async def test_relay_reports_a_peer_that_is_away_refuses_or_fails_in_one_line() -> None:
    forever = asyncio.Event()

    @agent
    async def broken(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.error("out of order")

    @agent
    async def hanging(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await forever.wait()

    peers = {
        "echo@localhost": EchoAgent,
        "broken@localhost": broken,
        "hanging@localhost": hanging,
        "strict@elsewhere": EchoAgent,
    }
    async with relay_tester(peers, ask=[*peers, "away@localhost"], timeout_s=2) as t:
        text = (await t.ask("hi")).text
        forever.set()
    assert text.split("\n\n") == [
        "echo: hi",
        "broken: no answer (broken@localhost reports: out of order)",
        "hanging: no answer (hanging@localhost did not answer in 2 s)",
        "strict: no answer (strict@elsewhere refuses: You don't have access to me yet. Please ask my operator.)",
        "away: no answer (away@localhost is not available: service unavailable)",
    ]


async def test_two_peers_of_relay_with_one_name_are_told_apart() -> None:
    async with relay_tester({"echo@localhost": EchoAgent, "echo@elsewhere": EchoAgent}, allow=("*",)) as t:
        assert (await t.ask("hi")).text == "echo@localhost: hi\n\necho@elsewhere: hi"


@pytest.mark.parametrize("ask", ["echo@localhost", []])
async def test_relay_without_a_list_of_agents_is_a_configuration_error(ask: Any) -> None:
    with pytest.raises(ConfigError, match='the option "ask" must be a list of agents'):
        await relay_tester({}, ask=ask).__aenter__()


# The round table


def round_table_tester(peers: Mapping[str, Any], **options: Any) -> AgentTester:
    agent_options = {"ask": list(peers), **options}
    return AgentTester(RoundTableAgent, jid="table@localhost", peers=peers, options=agent_options, user=ALICE)


@agent
async def count_paragraphs(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    """Reply with the number of paragraphs in the query."""
    await response.markdown(f"{len(request.payload['query'].split(chr(10) * 2))} heard")


async def test_the_round_table_asks_its_agents_in_turn_with_all_contributions() -> None:
    async with round_table_tester({"poet@localhost": count_paragraphs, "critic@localhost": count_paragraphs}, turns=3) as t:
        assert (await t.ask("spring")).text.split("\n\n") == [
            "**poet**: 1 heard",
            "**critic**: 2 heard",
            "**poet**: 3 heard",
            "That was our round table: 3 contributions.",
        ]


async def test_the_round_table_continues_without_absent_agents() -> None:
    async with AgentTester(
        RoundTableAgent,
        jid="table@localhost",
        peers={"poet@localhost": count_paragraphs},
        options={"ask": ["nobody@localhost", "poet@localhost"], "turns": 3, "timeout_s": 30},
    ) as t:
        text = (await t.ask("spring")).text
        assert text.startswith("**nobody** is not here.\n\n**poet**: 1 heard\n\n**poet**: 2 heard")


async def test_the_round_table_asks_for_a_topic() -> None:
    async with round_table_tester({"poet@localhost": count_paragraphs, "critic@localhost": count_paragraphs}) as t:
        assert await t.say("hello")  # anything is a topic
        assert (await t.ask({})).text == "What shall we talk about?"


@pytest.mark.parametrize("options", [{"ask": "poet@localhost"}, {"ask": ["poet@localhost"]}, {"turns": 0}])
async def test_a_round_table_with_wrong_options_is_a_configuration_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        async with round_table_tester({"poet@localhost": count_paragraphs, "critic@localhost": count_paragraphs}, **options):
            pass
