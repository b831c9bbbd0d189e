"""Replies (XEP-0461) with a client that knows them, and one that does not."""

from __future__ import annotations

from pathlib import Path

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from tests.support.hosting import FunctionAgent, run_agent
from tests.support.records import query_of
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.xmpp.test_live_messages import wait_until_known

REPLIES = ("xep_0030", "xep_0115", "xep_0461")


async def answer_with_history(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    queries = [query_of(turn) for turn in await session.history(100)]
    await response.markdown(" after ".join([request.payload["query"], *reversed(queries)]))


async def test_a_reply_continues_the_thread_of_the_answer_and_is_replied_to(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(FunctionAgent(answer_with_history), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=REPLIES) as alice,
        StockClient(*await real_server.account(), real_server, plugins=REPLIES) as mallory,
    ):
        await wait_until_known(alice, agent)
        question_id = alice.send("green?", agent.jid, thread="tea")
        first = await alice.answer()
        assert (first["reply"]["id"], first["reply"]["to"]) == (question_id, alice.full_jid)
        for client, text, thread in ((mallory, "what?", ""), (alice, "and black? after green?", "tea")):
            message = client.xmpp.make_message(agent.jid, mtype="chat")
            message["id"], message["body"] = "r1", text.split(" after ")[0]
            message["reply"]["id"], message["reply"]["to"] = first["id"], agent.jid
            message["reply"].add_quoted_fallback("green?")
            assert str(message["body"]).startswith("> ")
            message.send()
            answer = await client.answer()
            assert (answer["body"], answer["thread"], answer["reply"]["id"]) == (text, thread, "r1")
        await agent.restart()
        alice.send("and?", agent.jid, extra_xml=f"<reply xmlns='urn:xmpp:reply:0' id='{first['id']}'/>")
        assert (await alice.answer())["body"] == "and? after and black? after green?"


async def test_a_client_that_knows_no_replies_is_sent_none(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(FunctionAgent(answer_with_history), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        alice.send("hello", agent.jid)
        assert (await alice.answer()).xml.find("{urn:xmpp:reply:0}reply") is None
