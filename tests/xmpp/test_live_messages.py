"""A streamed answer grows in clients that show corrections; others receive it once, complete. Typing and markers too."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.texts.approval_mark import MARK
from spade_coreason.testing import RunnerTimings
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.clock import LoopClock
from tests.support.hosting import UNLIMITED, Echo, FunctionAgent, OnlineAgent, Tunnel, count_bodies, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

ACTIVE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
STATES = "{http://jabber.org/protocol/chatstates}"
REPLACE = "{urn:xmpp:message-correct:0}replace"
CORRECTION_PLUGINS = ("xep_0030", "xep_0115", "xep_0308")


class StreamController:
    """An agent that writes the words of the test into a stream, when the test says so."""

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


async def wait_until_known(client: StockClient, agent: OnlineAgent) -> None:
    """Send presence to the agent, and wait until it knows the client and its features."""
    client.xmpp.send_presence(pto=agent.jid)
    devices = agent.host.peer_features._devices
    await eventually(lambda: client.xmpp.boundjid.resource in devices.get(client.jid, {}))
    await eventually(lambda: not agent.host.peer_features._queries)


def corrected_id(message: Any) -> str | None:
    element = message.xml.find(REPLACE)
    return None if element is None else element.get("id")


async def test_a_streamed_answer_grows_in_clients_with_corrections(real_server: XmppServer, tmp_path: Path) -> None:
    controller = StreamController()
    async with (
        run_agent(controller.agent, real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=CORRECTION_PLUGINS) as alice,
    ):
        await wait_until_known(alice, agent)
        sent = record_sent(agent)
        with LoopClock() as clock:
            alice.send("go", agent.jid, thread="t")
            controller.write("It ")
            await clock.wait_for(lambda: len(controller.written) == 1)
            await clock.advance(0.05)
            first = await alice.answer()
            assert (first["body"], corrected_id(first), first["thread"]) == ("It", None, "t")
            controller.write("is ", "sunny ")
            await clock.wait_for(lambda: len(controller.written) == 3)
            await clock.advance(0.9)
            assert count_bodies(sent) == 1  # corrections are a second apart
            await clock.advance(0.2)
            second = await alice.answer()
        assert (second["body"], corrected_id(second)) == ("It is sunny", first["id"])
        controller.write("today", None)
        last = await alice.answer()
        assert (last["body"], corrected_id(last), last["thread"]) == ("It is sunny today", first["id"], "t")
        assert last.xml.find("{urn:xmpp:hints}store") is not None
        assert alice.messages.empty()


async def test_no_version_of_a_streamed_answer_has_a_line_that_begins_like_an_approval(
    real_server: XmppServer, tmp_path: Path
) -> None:
    controller = StreamController()
    async with (
        run_agent(controller.agent, real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=CORRECTION_PLUGINS) as alice,
    ):
        await wait_until_known(alice, agent)
        versions = []
        with LoopClock() as clock:
            alice.send("go", agent.jid)
            for word in ("Hello.\n- ", f"{MARK} bob", " asks for this.\n&#12", "8274; It needs your approval:"):
                controller.write(word)
                await clock.wait_for(lambda: controller.written[-1:] == [word])  # noqa: B023 - it is called at once
                await clock.advance(1.1)
                versions.append((await alice.answer())["body"])
        controller.write(None)
        versions.append((await alice.answer())["body"])
        assert any(f"{MARK} bob" in version for version in versions)
        assert versions[-1] == f"Hello.\n> - > {MARK} bob asks for this.\n> {MARK} It needs your approval:"
        for line in "\n".join(versions).splitlines():
            assert MARK not in line or line.startswith("> ")


async def test_with_one_device_without_corrections_the_answer_comes_once_and_complete(
    real_server: XmppServer, tmp_path: Path
) -> None:
    controller = StreamController()
    account = await real_server.account()
    async with (
        run_agent(controller.agent, real_server, tmp_path) as agent,
        StockClient(*account, real_server, plugins=CORRECTION_PLUGINS) as phone,
    ):
        await wait_until_known(phone, agent)
        async with StockClient(*account, real_server, plugins=("xep_0030",)) as old:
            await wait_until_known(old, agent)
            phone.send("go", agent.jid)
            controller.write("It ", "is ")
            await eventually(lambda: len(controller.written) == 2)
            controller.write("sunny", None)
            assert [(m["body"], corrected_id(m)) for m in (await phone.answer(), await old.answer())] == [
                ("It is sunny", None)
            ] * 2
        await eventually(lambda: agent.host.peer_features.has_corrections(phone.jid))  # as soon as the other has gone
        phone.send("go", agent.jid)
        controller.write("It ")
        assert (await phone.answer())["body"] == "It"
        controller.write(None)
        assert corrected_id(await phone.answer()) is not None


async def test_a_profanity_that_corrects_only_the_last_version_gets_chained_corrections(
    prosody: XmppServer, tmp_path: Path
) -> None:
    controller = StreamController()
    account = await prosody.account()
    async with (
        run_agent(controller.agent, prosody, tmp_path) as agent,
        StockClient(*account, prosody, plugins=CORRECTION_PLUGINS) as profanity,
    ):
        profanity.xmpp.plugin["xep_0030"].add_identity(category="client", itype="console", name="Profanity 0.13.1")
        await wait_until_known(profanity, agent)
        profanity.send("go", agent.jid)
        controller.write("It ")
        first = await profanity.answer()
        controller.write("is ")
        second = await profanity.answer()
        assert corrected_id(second) == first["id"]
        controller.write("sunny", None)
        assert corrected_id(await profanity.answer()) == second["id"]
        async with StockClient(*account, prosody, plugins=CORRECTION_PLUGINS) as phone:
            await wait_until_known(phone, agent)
            profanity.send("go", agent.jid)
            controller.write("It ")
            await eventually(controller.words.empty)
            controller.write("is", None)
            assert [(m["body"], corrected_id(m)) for m in (await profanity.answer(), await phone.answer())] == [
                ("It is", None)
            ] * 2


async def test_a_client_without_presence_gets_the_answer_once_and_complete(local_server: XmppServer, tmp_path: Path) -> None:
    controller = StreamController()
    async with (
        run_agent(controller.agent, local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        alice.send("go", agent.jid)
        controller.write("It ", "is ")
        await eventually(lambda: len(controller.written) == 2)
        await asyncio.sleep(0.1)
        controller.write("sunny", None)
        message = await alice.answer()
        assert (message["body"], corrected_id(message)) == ("It is sunny", None)
        assert alice.messages.empty()


async def test_strangers_are_not_asked_for_their_features(prosody: XmppServer, tmp_path: Path) -> None:
    controller = StreamController()
    async with (
        run_agent(controller.agent, prosody, tmp_path, access=("example.org",)) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTION_PLUGINS) as mallory,
    ):
        mallory.xmpp.send_presence(pto=agent.jid)
        mallory.send("hi", agent.jid)
        assert "You don't have access to me yet" in (await mallory.answer())["body"]
        assert agent.host.peer_features._devices == {}


async def test_a_device_that_comes_and_goes_without_end_is_asked_a_limited_number_of_times(
    prosody: XmppServer, tmp_path: Path
) -> None:
    questions: list[str] = []
    async with (
        run_agent(Echo(), prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTION_PLUGINS) as alice,
    ):

        def note_question(stanza: Any) -> Any:
            if stanza.xml.find("{http://jabber.org/protocol/disco#info}query") is not None and stanza["type"] == "get":
                questions.append(stanza["id"])
            return stanza

        alice.xmpp.add_filter("in", note_question)
        for _ in range(200):
            alice.xmpp.send_presence(pto=agent.jid)
            alice.xmpp.send_presence(pto=agent.jid, ptype="unavailable")
        assert await alice.ask("hi", agent.jid) == "hi"
        assert 0 < len(questions) < 150


async def test_ten_growing_answers_are_complete_after_ten_cuts(real_server: XmppServer, tmp_path: Path) -> None:
    controllers: dict[str, StreamController] = {}

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await controllers[session.identity.id].assist(request, session, response)

    async with AsyncExitStack() as stack:
        tunnel = await stack.enter_async_context(Tunnel(real_server))
        timings = ConnectionTimings(stable_session_s=0)  # ten cuts in a row would let it wait longer each time
        agent = await stack.enter_async_context(
            run_agent(FunctionAgent(assist), real_server, tmp_path, port=tunnel.port, timings=timings)
        )
        people = []
        for _ in range(10):
            client = StockClient(*await real_server.account(), real_server, plugins=CORRECTION_PLUGINS)
            people.append(await stack.enter_async_context(client))
            controllers[client.jid] = StreamController()
        for client in people:
            await wait_until_known(client, agent)
            client.send("go", agent.jid)
            controllers[client.jid].write(f"{client.jid} ")
        for client in people:
            await client.answer()
        connection = agent.host.connection
        for number in range(10):
            for controller in controllers.values():
                controller.write(f"{number} ")
            await agent.reconnected(tunnel.cut)
        assert connection.resumption_count + connection.session_count >= 11
        for controller in controllers.values():
            controller.write(None)
        for client in people:
            whole = " ".join([client.jid, *map(str, range(10))])
            async with asyncio.timeout(TIMEOUT_S):
                while (last := await client.answer())["body"] != whole or last.xml.find("{urn:xmpp:hints}store") is None:
                    assert whole.startswith(str(last["body"]))
            assert corrected_id(last) is not None
            assert controllers[client.jid].words.empty()
        await agent.settled()
        for client in people:
            while not client.messages.empty():  # what was not acknowledged may come again, with the same text
                again = await client.message()
                assert not again["body"] or again["body"] == " ".join([client.jid, *map(str, range(10))])


# Typing and markers


async def next_chat_state(client: StockClient, timeout_s: float = TIMEOUT_S) -> str:
    """Return the next chat state, alone or in another message."""
    async with asyncio.timeout(timeout_s):
        while True:
            message = await client.message(timeout_s)
            for child in message.xml:
                if child.tag.startswith(STATES):
                    return str(child.tag.removeprefix(STATES))


async def test_typing_is_shown_again_after_each_block_while_the_work_goes_on_and_always_ends(
    local_server: XmppServer, tmp_path: Path
) -> None:
    release, started, block_sent = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        started.set()
        await release.wait()
        release.clear()
        if request.payload["query"] == "speak":
            await response.markdown("a part")
            block_sent.set()
            await release.wait()

    async with (
        run_agent(FunctionAgent(assist), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        sent = record_sent(agent)
        with LoopClock() as clock:
            for query in ("speak", "be silent"):
                started.clear()
                release.clear()
                alice.send(query, agent.jid, extra_xml=ACTIVE)
                await started.wait()
                await _assert_typing_shown(alice, sent, clock)
                release.set()
                if query == "speak":
                    await block_sent.wait()
                    await clock.advance(0.1)  # so long a block waits for more
                    assert await next_chat_state(alice) == "active"
                    await _assert_typing_shown(alice, sent, clock)
                    release.set()
                assert await next_chat_state(alice) == "active"


async def _assert_typing_shown(client: StockClient, sent: list[str], clock: LoopClock) -> None:
    """Check that the agent shows typing after 200 ms and not before."""
    sent.clear()
    await clock.advance(0.19)
    assert not [data for data in sent if "composing" in data]
    await clock.advance(0.02)
    assert await next_chat_state(client) == "composing"


async def test_typing_is_repeated_while_the_work_lasts(prosody: XmppServer, tmp_path: Path) -> None:
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()

    policy = replace(UNLIMITED, timings=RunnerTimings(typing_interval_s=0.1))
    async with (
        run_agent(FunctionAgent(assist), prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        alice.send("go", agent.jid, extra_xml=ACTIVE)
        assert [await next_chat_state(alice) for _ in range(4)] == ["composing"] * 4
        release.set()
        while (last := await next_chat_state(alice)) == "composing":
            pass
        assert last == "active"


async def test_typing_of_a_cancelled_turn_is_paused(prosody: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await asyncio.Event().wait()

    async with (
        run_agent(FunctionAgent(assist), prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        alice.send("go", agent.jid, extra_xml=ACTIVE)
        assert await next_chat_state(alice) == "composing"
        await agent.runner.drain(0)
        assert await next_chat_state(alice) == "paused"


async def test_a_message_that_is_markable_is_displayed_when_the_agent_begins(local_server: XmppServer, tmp_path: Path) -> None:
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown("done")

    async with (
        run_agent(FunctionAgent(assist), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        markable = "<markable xmlns='urn:xmpp:chat-markers:0'/>"
        first = alice.send("one", agent.jid, extra_xml=markable)
        second = alice.send("two", agent.jid, extra_xml=markable)
        marker = (await alice.message()).xml.find("{urn:xmpp:chat-markers:0}displayed")
        assert marker is not None
        assert marker.get("id") == first
        release.set()
        assert (await alice.answer())["body"] == "done"
        marker = (await alice.message()).xml.find("{urn:xmpp:chat-markers:0}displayed")
        assert marker is not None
        assert marker.get("id") == second  # it had to wait


# What refers to other messages


async def test_a_stock_client_corrects_takes_back_and_reacts(local_server: XmppServer, tmp_path: Path) -> None:
    release = asyncio.Event()
    feedback_calls: list[tuple[str, ...]] = []

    class Slow(FunctionAgent):
        async def feedback(self, interaction: Any, reactions: tuple[str, ...]) -> None:
            feedback_calls.append(reactions)

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown(f"answer to {request.payload['query']}")

    slow = Slow(assist)
    async with (
        run_agent(slow, local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        wrong = alice.send("whta", agent.jid)
        right = alice.send("what", agent.jid, extra_xml=f"<replace xmlns='urn:xmpp:message-correct:0' id='{wrong}'/>")
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1 and agent.runner.mailboxes.count_queued(alice.jid) == 0)
        unwanted = alice.send("never mind", agent.jid)
        await eventually(lambda: agent.runner.mailboxes.count_queued(alice.jid) == 1)
        retract = f"<retract xmlns='urn:xmpp:message-retract:1' id='{unwanted}'/>"
        alice.send("I took a message back", agent.jid, extra_xml=retract)
        await eventually(lambda: agent.runner.mailboxes.count_queued(alice.jid) == 0)
        alice.send("last", agent.jid)
        await eventually(lambda: agent.gateway.dropped == {} and agent.runner.mailboxes.count_queued(alice.jid) == 1)
        release.set()
        answers = [await alice.answer() for _ in range(2)]
        assert [answer["body"] for answer in answers] == ["answer to what", "answer to last"]
        reaction = f"<reactions xmlns='urn:xmpp:reactions:0' id='{answers[0]['id']}'><reaction>👍</reaction></reactions>"
        alice.send(None, agent.jid, extra_xml=reaction)
        await eventually(lambda: feedback_calls == [("👍",)])
        assert right != wrong
        assert alice.messages.empty()
