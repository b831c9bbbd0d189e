"""A streamed answer grows before the eyes of whoever can see it; others see it once, whole. Typing and markers beside it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.runtime.policy import RunnerTimings
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.clock import LoopClock
from tests.support.hosting import UNLIMITED, FunctionAgent, OnlineAgent, Tunnel, count_bodies, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S, eventually

ACTIVE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
STATES = "{http://jabber.org/protocol/chatstates}"
REPLACE = "{urn:xmpp:message-correct:0}replace"
CORRECTS = ("xep_0030", "xep_0115", "xep_0308")


class Pen:
    """An agent that writes what a test tells it to, when it is told to."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.agent = FunctionAgent(self.assist, "pen")
        self.written: list[str] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        stream = await response.create_stream()
        while (word := await self.words.get()) is not None:
            await stream.write(word)
            self.written.append(word)
        await stream.close()

    def write(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


async def met(client: StockClient, agent: OnlineAgent) -> None:
    """The agent sees that the client is there, and what it can do."""
    client.xmpp.send_presence(pto=agent.jid)
    devices = agent.host.peer_features._devices
    await eventually(lambda: client.xmpp.boundjid.resource in devices.get(client.jid, {}))
    await eventually(lambda: not agent.host.peer_features._queries)


def replaces(message: Any) -> str | None:
    element = message.xml.find(REPLACE)
    return None if element is None else element.get("id")


async def test_a_streamed_answer_grows_for_whoever_sees_corrections(real_server: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    async with (
        run_agent(pen.agent, real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=CORRECTS) as alice,
    ):
        await met(alice, agent)
        sent = record_sent(agent)
        with LoopClock() as clock:
            alice.send("go", agent.jid, thread="t")
            pen.write("It ")
            await clock.until(lambda: len(pen.written) == 1)
            await clock.move(0.05)
            first = await alice.answer()
            assert (first["body"], replaces(first), first["thread"]) == ("It", None, "t")
            pen.write("is ", "sunny ")
            await clock.until(lambda: len(pen.written) == 3)
            await clock.move(0.9)
            assert count_bodies(sent) == 1  # corrections are a second apart
            await clock.move(0.2)
            second = await alice.answer()
        assert (second["body"], replaces(second)) == ("It is sunny", first["id"])
        pen.write("today", None)
        last = await alice.answer()
        assert (last["body"], replaces(last), last["thread"]) == ("It is sunny today", first["id"], "t")
        assert last.xml.find("{urn:xmpp:hints}store") is not None
        assert alice.messages.empty()


async def test_with_one_device_that_sees_no_corrections_it_comes_once_and_whole(
    real_server: XmppServer, tmp_path: Path
) -> None:
    pen = Pen()
    account = await real_server.account()
    async with (
        run_agent(pen.agent, real_server, tmp_path) as agent,
        StockClient(*account, real_server, plugins=CORRECTS) as phone,
    ):
        await met(phone, agent)
        async with StockClient(*account, real_server, plugins=("xep_0030",)) as old:
            await met(old, agent)
            phone.send("go", agent.jid)
            pen.write("It ", "is ")
            await eventually(lambda: len(pen.written) == 2)
            pen.write("sunny", None)
            assert [(m["body"], replaces(m)) for m in (await phone.answer(), await old.answer())] == [("It is sunny", None)] * 2
        await eventually(lambda: agent.host.peer_features.has_corrections(phone.jid))  # as soon as the other has gone
        phone.send("go", agent.jid)
        pen.write("It ")
        assert (await phone.answer())["body"] == "It"
        pen.write(None)
        assert replaces(await phone.answer()) is not None


async def test_a_profanity_that_knows_the_last_version_only_gets_what_it_can_show(prosody: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    account = await prosody.account()
    async with (
        run_agent(pen.agent, prosody, tmp_path) as agent,
        StockClient(*account, prosody, plugins=CORRECTS) as profanity,
    ):
        profanity.xmpp.plugin["xep_0030"].add_identity(category="client", itype="console", name="Profanity 0.13.1")
        await met(profanity, agent)
        profanity.send("go", agent.jid)
        pen.write("It ")
        first = await profanity.answer()
        pen.write("is ")
        second = await profanity.answer()
        assert replaces(second) == first["id"]
        pen.write("sunny", None)
        assert replaces(await profanity.answer()) == second["id"]
        async with StockClient(*account, prosody, plugins=CORRECTS) as phone:
            await met(phone, agent)
            profanity.send("go", agent.jid)
            pen.write("It ")
            await eventually(pen.words.empty)
            pen.write("is", None)
            assert [(m["body"], replaces(m)) for m in (await profanity.answer(), await phone.answer())] == [("It is", None)] * 2


async def test_whom_the_agent_does_not_see_gets_it_once_and_whole(our_server: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    async with (
        run_agent(pen.agent, our_server, tmp_path) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        alice.send("go", agent.jid)
        pen.write("It ", "is ")
        await eventually(lambda: len(pen.written) == 2)
        await asyncio.sleep(0.1)
        pen.write("sunny", None)
        message = await alice.answer()
        assert (message["body"], replaces(message)) == ("It is sunny", None)
        assert alice.messages.empty()


async def test_who_is_not_admitted_is_not_asked_what_they_can_do(prosody: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    async with (
        run_agent(pen.agent, prosody, tmp_path, access=("example.org",)) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTS) as mallory,
    ):
        mallory.xmpp.send_presence(pto=agent.jid)
        mallory.send("hi", agent.jid)
        assert "may not talk with you" in (await mallory.answer())["body"]
        assert agent.host.peer_features._devices == {}


async def test_cut_ten_times_while_ten_answers_grow_each_ends_with_its_one_whole_text(
    real_server: XmppServer, tmp_path: Path
) -> None:
    pens: dict[str, Pen] = {}

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await pens[session.identity.id].assist(request, session, response)

    async with AsyncExitStack() as stack:
        tunnel = await stack.enter_async_context(Tunnel(real_server))
        steady = ConnectionTimings(stable_session_s=0)  # ten cuts in a row would let it wait longer each time
        agent = await stack.enter_async_context(
            run_agent(FunctionAgent(assist), real_server, tmp_path, port=tunnel.port, timings=steady)
        )
        people = []
        for _ in range(10):
            client = StockClient(*await real_server.account(), real_server, plugins=CORRECTS)
            people.append(await stack.enter_async_context(client))
            pens[client.jid] = Pen()
        for client in people:
            await met(client, agent)
            client.send("go", agent.jid)
            pens[client.jid].write(f"{client.jid} ")
        for client in people:
            await client.answer()
        connection = agent.host.connection
        for number in range(10):
            for pen in pens.values():
                pen.write(f"{number} ")
            tunnel.cut()
            await eventually(lambda: not agent.host.is_alive())
            await eventually(agent.host.is_alive)
        assert connection.resumption_count + connection.session_count >= 11
        for pen in pens.values():
            pen.write(None)
        for client in people:
            whole = " ".join([client.jid, *map(str, range(10))])
            async with asyncio.timeout(PATIENCE_S):
                while (last := await client.answer())["body"] != whole or last.xml.find("{urn:xmpp:hints}store") is None:
                    assert whole.startswith(str(last["body"]))
            assert replaces(last) is not None
            assert pens[client.jid].words.empty()
        await agent.settled()
        for client in people:
            while not client.messages.empty():  # what was not acknowledged may come again, with the same text
                again = await client.message()
                assert not again["body"] or again["body"] == " ".join([client.jid, *map(str, range(10))])


# Typing and markers


async def state(client: StockClient, timeout_s: float = PATIENCE_S) -> str:
    """The next chat state, whatever it comes with."""
    async with asyncio.timeout(timeout_s):
        while True:
            message = await client.message(timeout_s)
            for child in message.xml:
                if child.tag.startswith(STATES):
                    return str(child.tag.removeprefix(STATES))


async def test_typing_is_shown_again_after_each_block_while_the_work_goes_on_and_always_ends(
    our_server: XmppServer, tmp_path: Path
) -> None:
    goes_on, begun, spoken = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        begun.set()
        await goes_on.wait()
        goes_on.clear()
        if request.payload["query"] == "speak":
            await response.markdown("a part")
            spoken.set()
            await goes_on.wait()

    async with (
        run_agent(FunctionAgent(assist), our_server, tmp_path) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        sent = record_sent(agent)
        with LoopClock() as clock:
            for query in ("speak", "be silent"):
                begun.clear()
                goes_on.clear()
                alice.send(query, agent.jid, extra_xml=ACTIVE)
                await begun.wait()
                await _begins_to_type(alice, sent, clock)
                goes_on.set()
                if query == "speak":
                    await spoken.wait()
                    await clock.move(0.1)  # so long a block waits for more
                    assert await state(alice) == "active"
                    await _begins_to_type(alice, sent, clock)
                    goes_on.set()
                assert await state(alice) == "active"


async def _begins_to_type(client: StockClient, sent: list[str], clock: LoopClock) -> None:
    """The agent shows it after 200 ms and not before."""
    sent.clear()
    await clock.move(0.19)
    assert not [data for data in sent if "composing" in data]
    await clock.move(0.02)
    assert await state(client) == "composing"


async def test_typing_is_said_again_for_as_long_as_the_work_lasts(prosody: XmppServer, tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await goes_on.wait()

    policy = replace(UNLIMITED, timings=RunnerTimings(typing_interval_s=0.1))
    async with (
        run_agent(FunctionAgent(assist), prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        alice.send("go", agent.jid, extra_xml=ACTIVE)
        assert [await state(alice) for _ in range(4)] == ["composing"] * 4
        goes_on.set()
        while (last := await state(alice)) == "composing":
            pass
        assert last == "active"


async def test_typing_of_a_turn_that_is_broken_off_is_taken_back(prosody: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await asyncio.Event().wait()

    async with (
        run_agent(FunctionAgent(assist), prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        alice.send("go", agent.jid, extra_xml=ACTIVE)
        assert await state(alice) == "composing"
        await agent.runner.drain(0)
        assert await state(alice) == "paused"


async def test_a_message_that_is_markable_is_displayed_when_the_agent_begins(our_server: XmppServer, tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await goes_on.wait()
        await response.markdown("done")

    async with (
        run_agent(FunctionAgent(assist), our_server, tmp_path) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        markable = "<markable xmlns='urn:xmpp:chat-markers:0'/>"
        first = alice.send("one", agent.jid, extra_xml=markable)
        second = alice.send("two", agent.jid, extra_xml=markable)
        marker = (await alice.message()).xml.find("{urn:xmpp:chat-markers:0}displayed")
        assert marker is not None
        assert marker.get("id") == first
        goes_on.set()
        assert (await alice.answer())["body"] == "done"
        marker = (await alice.message()).xml.find("{urn:xmpp:chat-markers:0}displayed")
        assert marker is not None
        assert marker.get("id") == second  # it had to wait


# What refers to other messages


async def test_a_stock_client_corrects_takes_back_and_reacts(our_server: XmppServer, tmp_path: Path) -> None:
    may = asyncio.Event()
    felt: list[tuple[str, ...]] = []

    class Slow(FunctionAgent):
        async def feedback(self, interaction: Any, reactions: tuple[str, ...]) -> None:
            felt.append(reactions)

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await may.wait()
        await response.markdown(f"answer to {request.payload['query']}")

    slow = Slow(assist)
    async with run_agent(slow, our_server, tmp_path) as agent, StockClient(*await our_server.account(), our_server) as alice:
        wrong = alice.send("whta", agent.jid)
        right = alice.send("what", agent.jid, extra_xml=f"<replace xmlns='urn:xmpp:message-correct:0' id='{wrong}'/>")
        unwanted = alice.send("never mind", agent.jid)
        retract = f"<retract xmlns='urn:xmpp:message-retract:1' id='{unwanted}'/>"
        alice.send("I took a message back", agent.jid, extra_xml=retract)
        alice.send("last", agent.jid)
        await eventually(lambda: agent.gateway.dropped == {} and agent.runner.count_queued(alice.jid) == 1)
        may.set()
        answers = [await alice.answer() for _ in range(2)]
        assert [answer["body"] for answer in answers] == ["answer to what", "answer to last"]
        felt_about = f"<reactions xmlns='urn:xmpp:reactions:0' id='{answers[0]['id']}'><reaction>👍</reaction></reactions>"
        alice.send(None, agent.jid, extra_xml=felt_about)
        await eventually(lambda: felt == [("👍",)])
        assert right != wrong
        assert alice.messages.empty()
