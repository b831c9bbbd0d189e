"""Replies (XEP-0461): they go on in the conversation of the message that they reply to, where that is the sender's own."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import Element

import pytest

from spade_coreason import AgentDefinition, AgentTester, Interaction, Policy
from spade_coreason.conversation import Rules
from tests.showing import Showing
from tests.waiting import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"
REPLY = "{urn:xmpp:reply:0}reply"


class Listing:
    """Says what was asked before in the same conversation; "wait" waits until it may go on."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("listing")
        self.may = asyncio.Event()
        self.asked: list[str] = []

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        query = request.payload["query"]
        self.asked.append(query)
        if query == "wait":
            stream = await response.create_stream()
            await stream.write("waiting")
            await self.may.wait()
        before = ", ".join(turn.input["query"] for turn in await session.history(100))
        await response.markdown(f"{query} after {before}" if before else query)


def person_of(t: AgentTester, user: str) -> list[Element]:
    """All stanzas that come to a user from now on."""
    heard: list[Element] = []
    person = t._as(user)
    receive = person._receive

    def keep(stanza: Element) -> None:
        heard.append(stanza)
        receive(stanza)

    t._network.attach(user, keep)
    return heard


def said(text: str, inner: str = "", thread: str = "", id: str = "") -> str:
    on = f"<thread>{thread}</thread>" if thread else ""
    return f"<message to='{AGENT}' type='chat' id='{id or uuid4()}'><body>{text}</body>{on}{inner}</message>"


def reply(to: str, text: str, inner: str = "", thread: str = "") -> str:
    return said(text, f"<reply xmlns='urn:xmpp:reply:0' to='{AGENT}' id='{to}'/>{inner}", thread)


async def told(t: AgentTester, heard: list[Element], stanza: str, user: str = ALICE) -> Element:
    """Sends, and gives the one message of the answer."""
    heard.clear()
    t.send_stanza(stanza, user=user)
    await t.settled()
    t.unread(user)
    [answer] = [message for message in heard if message.find("{jabber:client}body") is not None]
    return answer


def text_of(message: Element) -> tuple[str | None, str | None]:
    return message.findtext("{jabber:client}body"), message.findtext("{jabber:client}thread")


@pytest.mark.parametrize("when", ["at once", "after a restart", "after a thousand others"])
@pytest.mark.parametrize("thread", ["tea", "a_b@c", f"{ALICE}_{AGENT}"])
async def test_a_reply_without_a_thread_goes_on_where_that_answer_was(when: str, thread: str) -> None:
    async with AgentTester(lambda: Listing(), user=ALICE, policy=Policy(rules=Rules(max_interactions=0))) as t:
        heard = person_of(t, ALICE)
        first = await told(t, heard, said("green?", thread=thread))
        if when == "after a restart":
            await t.restart()
        elif when == "after a thousand others":
            t.runners[AGENT]._places._recent.clear()
        assert text_of(await told(t, heard, said("elsewhere"))) == ("elsewhere", None)
        second = await told(t, heard, reply(first.get("id", ""), "and black?"))
        assert text_of(second) == ("and black? after green?", thread)
        third = await told(t, heard, reply(second.get("id", ""), "and?"))
        assert text_of(third) == ("and? after green?, and black?", thread)
        assert text_of(await told(t, heard, said("still?", thread=thread)))[0] == "still? after green?, and black?, and?"


async def test_a_reply_and_a_reaction_reach_a_conversation_behind_more_than_a_hundred_newer_ones() -> None:
    felt: list[tuple[str, ...]] = []

    class Feeling(Listing):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            assert interaction.input == {"query": "green?"}
            felt.append(reactions)

    async with AgentTester(lambda: Feeling(), user=ALICE) as t:
        heard = person_of(t, ALICE)
        first = await told(t, heard, said("green?", thread="tea"))
        theirs = person_of(t, BOB)
        bobs = await told(t, theirs, said("whose?", thread="bob's"), user=BOB)
        for number in range(120):
            t.send_stanza(said("other", thread=f"other {number}"), user=ALICE)
            await t.settled()
        t.unread(ALICE)
        await t.restart()
        thumb = f"<reactions xmlns='urn:xmpp:reactions:0' id='{first.get('id')}'><reaction>👍</reaction></reactions>"
        t.send_stanza(f"<message to='{AGENT}' id='r'>{thumb}</message>", user=ALICE)
        await eventually(lambda: felt == [("👍",)])
        assert text_of(await told(t, heard, reply(first.get("id", ""), "and black?"))) == ("and black? after green?", "tea")
        assert text_of(await told(t, heard, reply(bobs.get("id", ""), "mine?"))) == ("mine?", None)


async def test_a_reply_with_a_thread_is_on_that_thread() -> None:
    async with AgentTester(Listing(), user=ALICE) as t:
        heard = person_of(t, ALICE)
        first = await told(t, heard, said("green?", thread="tea"))
        assert text_of(await told(t, heard, reply(first.get("id", ""), "or?", thread="coffee"))) == ("or?", "coffee")


@pytest.mark.parametrize("is_known", [True, False], ids=["in memory", "in the database"])
async def test_a_reply_to_what_was_said_to_somebody_else_is_one_to_an_unknown_id(is_known: bool) -> None:
    async with AgentTester(Listing()) as t:
        of_alice, of_bob = person_of(t, ALICE), person_of(t, BOB)
        answer = await told(t, of_alice, said("my secret", thread="tea"), ALICE)
        if not is_known:
            t.runners[AGENT]._places._recent.clear()
        outcomes = []
        for number, target in enumerate((answer.get("id", ""), f"{uuid4()}-0-00000000", "no id of ours", "")):
            await told(t, of_bob, f"<message to='{AGENT}' id='{uuid4()}'><body>/forget me yes</body></message>", BOB)
            got = await told(t, of_bob, reply(target, "what?"), BOB)
            rows = [row for row in await t.runners[AGENT].store.conversations(owner=BOB) if row.turns]
            outcomes.append((text_of(got), [row.conversation_id for row in rows]))
            assert outcomes[number] == ((("what?", None)), [f"{BOB}_{AGENT}"])
        assert text_of(await told(t, of_alice, said("again", thread="tea"), ALICE))[0] == "again after my secret"


async def test_a_reply_to_an_answer_that_still_grows_waits_in_its_conversation() -> None:
    listing = Listing()
    async with AgentTester(listing, user=ALICE) as t:
        t.runners[AGENT]._engine.devices = Showing(corrections=True)
        heard = person_of(t, ALICE)
        t.send_stanza(said("wait", thread="tea"))
        await eventually(lambda: any(message.find("{jabber:client}body") is not None for message in heard))
        growing = next(message for message in heard if message.find("{jabber:client}body") is not None)
        t.send_stanza(reply(growing.get("id", ""), "and then?"))
        assert await t.say("elsewhere") == ["elsewhere"]
        listing.may.set()
        await t.settled()
        assert t.unread()[-1] == "and then? after wait"


async def test_replies_and_what_comes_behind_them_stay_in_order() -> None:
    listing = Listing()
    async with AgentTester(listing, user=ALICE, policy=Policy(rules=Rules(max_interactions=0))) as t:
        first = await told(t, person_of(t, ALICE), said("0", thread="tea"))
        t.runners[AGENT]._places._recent.clear()
        for number in range(1, 40, 2):
            t.send_stanza(reply(first.get("id", ""), str(number)))
            t.send_stanza(said(str(number + 1), thread="tea"))
        await t.settled()
        assert listing.asked == [str(number) for number in range(41)]


@pytest.mark.parametrize("how", ["retract", "correct", "restart"])
async def test_a_reply_is_a_question_like_any_other_while_its_place_is_looked_for(how: str) -> None:
    async with AgentTester(lambda: Listing(), user=ALICE) as t:
        first = await told(t, person_of(t, ALICE), said("0", thread="tea"))
        t.runners[AGENT]._places._recent.clear()
        asked = reply(first.get("id", ""), "whta").replace(" id='", " id='1' x='", 1)
        t.send_stanza(asked)
        if how == "retract":
            t.send_stanza(said("gone", "<retract xmlns='urn:xmpp:message-retract:1' id='1'/>"))
        elif how == "correct":
            correction = "<replace xmlns='urn:xmpp:message-correct:0' id='1'/>"
            t.send_stanza(reply(first.get("id", ""), "what", correction))
        else:
            await t._network.carried()
            await t.restart()
        await t.settled()
        assert t.unread() == {"retract": [], "correct": ["what after 0"], "restart": ["whta after 0"]}[how]


async def test_a_command_in_a_reply_concerns_the_conversation_of_that_answer() -> None:
    async with AgentTester(Listing(), user=ALICE) as t:
        heard = person_of(t, ALICE)
        await told(t, heard, said("here"))
        await told(t, heard, said("green?", thread="tea"))
        confirm = await told(t, heard, said("/forget", thread="tea"))
        assert (await told(t, heard, reply(confirm.get("id", ""), "/forget yes"))).findtext("{jabber:client}thread") == "tea"
        assert text_of(await told(t, heard, said("and?", thread="tea"))) == ("and?", "tea")
        assert text_of(await told(t, heard, said("and?")))[0] == "and? after here"


# What an answer refers to


@pytest.mark.parametrize("origin", ["", "o1"])
async def test_an_answer_to_a_reply_refers_to_it_once(origin: str) -> None:
    class Two(Listing):
        async def assist(self, request: Any, session: Any, response: Any) -> None:
            await response.markdown("one")
            await response.markdown("two")

    async with AgentTester(Two(), user=ALICE) as t:
        heard = person_of(t, ALICE)
        named = f"<origin-id xmlns='urn:xmpp:sid:0' id='{origin}'/>" if origin else ""
        t.send_stanza(reply("unknown", "x", named).replace(" id='", " id='q1' x='", 1))
        await t.settled()
        first, second = (message.find(REPLY) for message in heard)
        assert first is not None
        assert (first.get("id"), first.get("to")) == (origin or "q1", f"{ALICE}/test")
        assert second is None
        assert all(message.find("{urn:xmpp:fallback:0}fallback") is None for message in heard)


async def test_who_knows_no_replies_gets_none_and_whose_device_shows_them_does() -> None:
    async with AgentTester(Listing(), user=ALICE) as t:
        heard = person_of(t, ALICE)
        assert (await told(t, heard, said("x"))).find(REPLY) is None
        t.runners[AGENT]._engine.devices = Showing(replies=(f"{ALICE}/test",))
        referred = (await told(t, heard, said("x", id="q2"))).find(REPLY)
        assert referred is not None
        assert referred.get("id") == "q2"


async def test_every_version_of_an_answer_that_grows_refers_to_the_question() -> None:
    listing = Listing()
    async with AgentTester(listing, user=ALICE) as t:
        t.runners[AGENT]._engine.devices = Showing(corrections=True, replies=(f"{ALICE}/test",))
        heard = person_of(t, ALICE)
        t.send_stanza(said("wait", id="q3"))
        await eventually(lambda: any(message.find("{jabber:client}body") is not None for message in heard))
        listing.may.set()
        await t.settled()
        growing, other, whole = heard
        for message in (growing, whole):
            referred = message.find(REPLY)
            assert referred is not None
            assert referred.get("id") == "q3"
        assert other.find(REPLY) is None


QUOTES: list[tuple[str, str, str]] = [
    ("&gt; green?\nand black?", "<body start='0' end='9'/>", "and black?"),
    ("and black?\n&gt; green?", "<body start='10' end='19'/>", "and black?"),
    ("&gt; \N{ROCKET}\nand black?", "<body start='0' end='4'/>", "and black?"),
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

    listing = Listing()
    async with AgentTester(listing, user=ALICE) as t:
        t.send_stanza(reply("unknown", body, quoted("urn:xmpp:reply:0")))
        t.send_stanza(reply("unknown", "abc", quoted("urn:of:another")))
        t.send_stanza(said("abc", quoted("urn:xmpp:reply:0")))
        await t.settled()
        assert listing.asked == [query, "abc", "abc"]


async def test_replies_whose_place_is_looked_for_count_among_those_that_wait() -> None:
    async with AgentTester(Listing, user=ALICE, policy=Policy(queue=3)) as t:
        for number in range(40):
            t.send_stanza(reply(str(uuid4()), f"reply {number}"))
        await t.settled()
        assert len(t.agent.asked) == 30  # type: ignore[attr-defined]
        assert [text for text in t.unread() if "30 messages of yours wait already" in text]
