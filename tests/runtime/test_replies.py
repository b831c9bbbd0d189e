"""Replies (XEP-0461): they continue the conversation of the message that they reply to, if it is the sender's own."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Interaction, ResponseHandler, SessionHandle
from spade_coreason.testing import PlatformLimits, Policy, ReceivedMessage, Rules
from tests.support.records import query_of
from tests.support.wait import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"
REPLY = "{urn:xmpp:reply:0}reply"
# Every reply is looked for in the database, as one to a turn before many others.
NO_REMEMBERED_TURNS = Policy(rules=Rules(max_interactions=0), remembered_turns=0)


class HistoryAgent:
    """Reply with the earlier questions of the conversation; "wait" waits for the test."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("listing")
        self.release = asyncio.Event()
        self.asked: list[str] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.asked.append(query)
        if query == "wait":
            stream = await response.create_stream()
            await stream.write("waiting")
            await self.release.wait()
        before = ", ".join(query_of(turn) for turn in await session.history(100))
        await response.markdown(f"{query} after {before}" if before else query)


async def send_and_receive(t: AgentTester, text: str, user: str = ALICE, **options: Any) -> ReceivedMessage:
    """Send a text, and return the one message of the reply."""
    before = len(text_messages(t, user))
    t.send(text, user=user, **options)
    await t.settled()
    t.unread(user)
    [answer] = text_messages(t, user)[before:]
    return answer


def text_messages(t: AgentTester, user: str = ALICE) -> list[ReceivedMessage]:
    return [message for message in t.messages(user) if message.text is not None]


def text_and_thread(message: ReceivedMessage) -> tuple[str | None, str | None]:
    return message.text, message.thread


@pytest.mark.parametrize("when", ["at once", "after a restart", "after a thousand others"])
@pytest.mark.parametrize("thread", ["tea", "a_b@c", f"{ALICE}_{AGENT}"])
async def test_a_reply_without_a_thread_continues_the_conversation_of_that_answer(when: str, thread: str) -> None:
    policy = NO_REMEMBERED_TURNS if when == "after a thousand others" else Policy(rules=Rules(max_interactions=0))
    async with AgentTester(lambda: HistoryAgent(), user=ALICE, policy=policy) as t:
        first = await send_and_receive(t, "green?", thread=thread)
        if when == "after a restart":
            await t.restart()
        assert text_and_thread(await send_and_receive(t, "elsewhere")) == ("elsewhere", None)
        second = await send_and_receive(t, "and black?", reply_to=first.id)
        assert text_and_thread(second) == ("and black? after green?", thread)
        third = await send_and_receive(t, "and?", reply_to=second.id)
        assert text_and_thread(third) == ("and? after green?, and black?", thread)
        assert text_and_thread(await send_and_receive(t, "still?", thread=thread))[0] == "still? after green?, and black?, and?"


async def test_a_reply_and_a_reaction_reach_a_conversation_behind_more_than_a_hundred_newer_ones() -> None:
    reactions_seen: list[tuple[str, ...]] = []

    class FeedbackAgent(HistoryAgent):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            assert interaction.input == {"query": "green?"}
            reactions_seen.append(reactions)

    async with AgentTester(lambda: FeedbackAgent(), user=ALICE) as t:
        first = await send_and_receive(t, "green?", thread="tea")
        bobs = await send_and_receive(t, "whose?", BOB, thread="bob's")
        for number in range(120):
            t.send("other", thread=f"other {number}", user=ALICE)
            await t.settled()
        t.unread(ALICE)
        await t.restart()
        t.react(first.id, "👍")
        await eventually(lambda: reactions_seen == [("👍",)])
        assert text_and_thread(await send_and_receive(t, "and black?", reply_to=first.id)) == ("and black? after green?", "tea")
        assert text_and_thread(await send_and_receive(t, "mine?", reply_to=bobs.id)) == ("mine?", None)


async def test_a_reply_with_a_thread_is_on_that_thread() -> None:
    async with AgentTester(HistoryAgent(), user=ALICE) as t:
        first = await send_and_receive(t, "green?", thread="tea")
        assert text_and_thread(await send_and_receive(t, "or?", reply_to=first.id, thread="coffee")) == ("or?", "coffee")


@pytest.mark.parametrize("is_known", [True, False], ids=["in memory", "in the database"])
async def test_a_reply_to_a_message_of_another_person_counts_as_one_to_an_unknown_id(is_known: bool) -> None:
    async with AgentTester(HistoryAgent(), policy=Policy() if is_known else NO_REMEMBERED_TURNS) as t:
        answer = await send_and_receive(t, "my secret", thread="tea")
        outcomes = []
        for number, target in enumerate((answer.id, f"{uuid4()}-0-00000000", "no id of ours", "")):
            await send_and_receive(t, "/forget me yes", BOB)
            got = await send_and_receive(t, "what?", BOB, reply_to=target)
            rows = [row for row in await t.runners[AGENT].repository.list_conversations(owner=BOB) if row.turns]
            outcomes.append((text_and_thread(got), [row.conversation_id for row in rows]))
            assert outcomes[number] == ((("what?", None)), [f"{BOB}_{AGENT}"])
        assert text_and_thread(await send_and_receive(t, "again", thread="tea"))[0] == "again after my secret"


async def test_a_reply_to_a_live_answer_waits_in_its_conversation() -> None:
    history_agent = HistoryAgent()
    async with AgentTester(history_agent, user=ALICE, client_features={"corrections"}) as t:
        t.send("wait", thread="tea")
        growing = await t.message()
        t.send("and then?", reply_to=growing.id)
        assert await t.say("elsewhere") == ["elsewhere"]
        history_agent.release.set()
        await t.settled()
        assert t.unread()[-1] == "and then? after wait"


async def test_replies_and_later_messages_stay_in_order() -> None:
    history_agent = HistoryAgent()
    async with AgentTester(history_agent, user=ALICE, policy=NO_REMEMBERED_TURNS) as t:
        first = await send_and_receive(t, "0", thread="tea")
        for number in range(1, 40, 2):
            t.send(str(number), reply_to=first.id)
            t.send(str(number + 1), thread="tea")
        await t.settled()
        assert history_agent.asked == [str(number) for number in range(41)]


@pytest.mark.parametrize("how", ["retract", "correct", "restart"])
async def test_a_reply_can_be_retracted_and_corrected_while_its_thread_is_looked_up(how: str) -> None:
    async with AgentTester(lambda: HistoryAgent(), user=ALICE, policy=NO_REMEMBERED_TURNS) as t:
        first = await send_and_receive(t, "0", thread="tea")
        t.send("whta", id="1", reply_to=first.id)
        if how == "retract":
            t.retract("1")
        elif how == "correct":
            t.send("what", reply_to=first.id, corrects="1")
        else:
            await t.delivered()
            await t.restart()
        await t.settled()
        assert t.unread() == {"retract": [], "correct": ["what after 0"], "restart": ["whta after 0"]}[how]


async def test_a_command_in_a_reply_concerns_the_conversation_of_that_answer() -> None:
    async with AgentTester(HistoryAgent(), user=ALICE) as t:
        await send_and_receive(t, "here")
        await send_and_receive(t, "green?", thread="tea")
        confirm = await send_and_receive(t, "/forget", thread="tea")
        assert (await send_and_receive(t, "/forget yes", reply_to=confirm.id)).thread == "tea"
        assert text_and_thread(await send_and_receive(t, "and?", thread="tea")) == ("and?", "tea")
        assert text_and_thread(await send_and_receive(t, "and?"))[0] == "and? after here"


# What an answer refers to


@pytest.mark.parametrize("origin", ["", "o1"])
async def test_an_answer_to_a_reply_refers_to_it_once(origin: str) -> None:
    class Two(HistoryAgent):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            await response.markdown("one")
            await response.markdown("two")

    async with AgentTester(Two(), user=ALICE) as t:
        named = f"<origin-id xmlns='urn:xmpp:sid:0' id='{origin}'/>" if origin else ""
        t.send("x", id="q1", reply_to="unknown", extra=named)
        await t.settled()
        first, second = (message.xml.find(REPLY) for message in t.messages())
        assert first is not None
        assert (first.get("id"), first.get("to")) == (origin or "q1", f"{ALICE}/test")
        assert second is None
        assert all(message.xml.find("{urn:xmpp:fallback:0}fallback") is None for message in t.messages())


async def test_answers_refer_to_the_question_only_on_devices_that_support_replies() -> None:
    async with AgentTester(HistoryAgent(), user=ALICE) as t:
        assert (await send_and_receive(t, "x")).reply_to is None
        t.client_features = {"replies"}
        assert (await send_and_receive(t, "x", id="q2")).reply_to == "q2"


async def test_every_version_of_a_live_answer_refers_to_the_question() -> None:
    history_agent = HistoryAgent()
    async with AgentTester(history_agent, user=ALICE, client_features={"corrections", "replies"}) as t:
        t.send("wait", id="q3")
        await t.message()
        history_agent.release.set()
        await t.settled()
        growing, other, whole = t.messages()
        for message in (growing, whole):
            assert message.reply_to == "q3"
        assert other.reply_to is None


QUOTES: list[tuple[str, str, str]] = [
    ("> green?\nand black?", "<body start='0' end='9'/>", "and black?"),
    ("and black?\n> green?", "<body start='10' end='19'/>", "and black?"),
    ("> \N{ROCKET}\nand black?", "<body start='0' end='4'/>", "and black?"),
    ("abcdef", "<body start='0' end='1'/><body start='3' end='5'/>", "bcf"),
    ("abcdef", "<body start='3' end='9'/><body start='0' end='1'/>", "bc"),
    ("abcdef", "<body start='2' end='1'/>", "abcdef"),
    ("abcdef", "<body start='x' end='-1'/>", "abcdef"),
    ("abcdef", "<body/>", "abcdef"),
    ("abcdef", "", "abcdef"),
    ("abcdef", "<body start='0' end='99999999999999999999'/>", "abcdef"),
]


@pytest.mark.parametrize(("body", "ranges", "query"), QUOTES)
async def test_the_quote_for_other_clients_is_no_part_of_a_question(body: str, ranges: str, query: str) -> None:
    def quoted(of: str) -> str:
        return f"<fallback xmlns='urn:xmpp:fallback:0' for='{of}'>{ranges}</fallback>"

    history_agent = HistoryAgent()
    async with AgentTester(history_agent, user=ALICE) as t:
        t.send(body, reply_to="unknown", extra=quoted("urn:xmpp:reply:0"))
        t.send("abc", reply_to="unknown", extra=quoted("urn:of:another"))
        t.send("abc", extra=quoted("urn:xmpp:reply:0"))
        await t.settled()
        assert history_agent.asked == [query, "abc", "abc"]


async def test_replies_whose_thread_is_looked_up_count_as_queued() -> None:
    async with AgentTester(HistoryAgent, user=ALICE, policy=Policy(limits=PlatformLimits(queue=3))) as t:
        for number in range(40):
            t.send(f"reply {number}", reply_to=str(uuid4()))
        await t.settled()
        assert len(t.agent.asked) == 30  # type: ignore[attr-defined]  # of this test's own agent
        assert [text for text in t.unread() if "You already have 30 messages waiting" in text]
