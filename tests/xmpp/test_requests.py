"""Stock clients ask and are answered: with and without threads, with receipts and typing where they use them."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from tests.support.clock import LoopClock
from tests.support.hosting import Echo, FunctionAgent, envelope, parse_event, receive_events, record_sent, run_agent
from tests.support.seed_echo import EchoAgent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

ACTIVE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
COMPOSING = "{http://jabber.org/protocol/chatstates}composing"
RECEIPT = "{urn:xmpp:receipts}received"
ORIGIN_ID = "{urn:xmpp:sid:0}origin-id"


async def test_a_stock_client_asks_and_is_answered(any_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), any_server, tmp_path) as echo, StockClient(*await any_server.account(), any_server) as alice:
        alice.send("no thread", echo.jid)
        plain = await alice.answer()
        assert (plain["body"], plain["thread"], plain["type"]) == ("no thread", "", "chat")
        assert plain["from"].bare == echo.jid
        if any_server.kind != "embedded":  # it gives no agent the resource that it asks for
            assert plain["from"].resource == "agent"
        origin = plain.xml.find(ORIGIN_ID)
        assert origin is not None
        assert origin.get("id") == plain["id"]
        alice.send("a thread", echo.jid, thread="t <&> 1")
        threaded = await alice.answer()
        assert (threaded["body"], threaded["thread"]) == ("a thread", "t <&> 1")
        alice.send("a branch", echo.jid, extra_xml="<thread parent='t &lt;&amp;&gt; 1'>twig</thread>")
        branch = (await alice.answer()).xml.find("{jabber:client}thread")
        assert branch is not None
        assert (branch.text, branch.get("parent")) == ("twig", "t <&> 1")
        alice.send("a normal message", echo.jid, type="normal")
        assert (await alice.answer())["type"] == "normal"


async def test_the_answer_reaches_the_device_that_came_after_the_question(prosody: XmppServer, tmp_path: Path) -> None:
    account = await prosody.account()
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown("here you are")

    async with run_agent(FunctionAgent(assist), prosody, tmp_path) as agent:
        async with StockClient(*account, prosody, resource="phone") as phone:
            phone.send("where are you?", agent.jid)
        async with StockClient(*account, prosody, resource="desk") as desk:
            release.set()
            assert (await desk.answer())["body"] == "here you are"


async def test_a_receipt_is_sent_only_if_it_was_requested(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        ident = alice.send("got it?", echo.jid, extra_xml="<request xmlns='urn:xmpp:receipts'/>")
        first, second = await alice.message(), await alice.message()
        receipts = [message.xml.find(RECEIPT) for message in (first, second)]
        assert [receipt.get("id") for receipt in receipts if receipt is not None] == [ident]
        alice.send("no receipt", echo.jid)
        message = await alice.message()
        assert message["body"] == "no receipt"
        assert message.xml.find(RECEIPT) is None
        # A receipt, a marker or a typing state asks nothing.
        displayed = "<displayed xmlns='urn:xmpp:chat-markers:0' id='x'/>"
        for extra in ("<received xmlns='urn:xmpp:receipts' id='x'/>", ACTIVE, displayed):
            alice.send(None, echo.jid, extra_xml=extra)
        assert await alice.ask("still there?", echo.jid) == "still there?"


async def test_a_receipt_comes_when_the_message_is_on_disk_and_not_before(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server, plugins=("xep_0199",)) as alice,
    ):
        assert await alice.ask("hello", echo.jid) == "hello"
        with closing(sqlite3.connect(echo.url.partition(":///")[2], isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            ident = alice.send("got it?", echo.jid, extra_xml="<request xmlns='urn:xmpp:receipts'/>")
            for _ in range(2):  # what came before a ping is read before its answer leaves
                await alice.xmpp.plugin["xep_0199"].ping(f"{echo.jid}/agent", timeout=TIMEOUT_S)
            await asyncio.sleep(0.1)
            assert alice.messages.empty()
        received = (await alice.message()).xml.find(RECEIPT)
        assert received is not None
        assert received.get("id") == ident
        assert (await alice.answer())["body"] == "got it?"


async def test_typing_is_shown_to_clients_with_chat_states_when_the_work_lasts(
    local_server: XmppServer, tmp_path: Path
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "think":
            started.set()
            await release.wait()
            release.clear()
        await response.markdown("done")

    async with (
        run_agent(FunctionAgent(assist), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        sent = record_sent(agent)
        with LoopClock() as clock:
            alice.send("think", agent.jid, thread="t", extra_xml=ACTIVE)
            await started.wait()
            await clock.advance(0.19)
            assert not [data for data in sent if "composing" in data]
            await clock.advance(0.02)
            typing = await alice.message()
            assert typing.xml.find(COMPOSING) is not None
            assert typing["thread"] == "t"
        release.set()
        answer = await alice.message()
        assert answer["body"] == "done"
        assert answer.xml.find("{http://jabber.org/protocol/chatstates}active") is not None
        # Quick work shows nothing; neither does slow work to a client that does not use chat states.
        with LoopClock() as clock:
            alice.send("quick", agent.jid, extra_xml=ACTIVE)
            assert (await alice.message())["body"] == "done"
            started.clear()
            alice.send("think", agent.jid)
            await started.wait()
            await clock.advance(0.4)
            release.set()
            message = await alice.message()
        assert message["body"] == "done"
        assert message.xml.find(COMPOSING) is None


async def test_a_stream_reaches_a_person_as_one_message(local_server: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.thought("hm")
        stream = await response.create_stream(title="words")
        for word in ("one", "two", "three"):
            await stream.write(word + " ")
        await stream.close()

    async with (
        run_agent(FunctionAgent(assist), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        alice.send("count", agent.jid)
        assert (await alice.message())["body"] == "one two three"
        assert await alice.ask("again", agent.jid) == "one two three"


async def test_the_echo_agent_of_the_seed_answers_people_and_programs(local_server: XmppServer, tmp_path: Path) -> None:
    agent = EchoAgent(manifest=AgentDefinition.simple("echo"))
    async with (
        run_agent(agent, local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert await alice.ask("one two", echo.jid) == "one two"
        alice.send(None, echo.jid, extra_xml=envelope({"query": "three four"}))
        events = await receive_events(alice)
        kinds = ["stream.start", "stream.chunk", "stream.chunk", "stream.end", "request.completed"]
        assert [event["type"] for event in events] == [f"ai.coreason.{kind}" for kind in kinds]


async def test_a_table_reaches_a_program_as_an_event(real_server: XmppServer, tmp_path: Path) -> None:
    table = {"columns": ["city", "degrees"], "rows": [{"city": "Berlin", "degrees": 7}, {"city": "Rome", "degrees": 15}]}

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.data(table, title="Weather", view_hint="TABLE")

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as program,
    ):
        program.send(None, agent.jid, type="normal", extra_xml=envelope({"query": "weather"}))
        event = parse_event(await program.message())
        assert event["type"] == "ai.coreason.block.data"
        assert (event["data"]["title"], event["data"]["data"]) == ("Weather", table)
