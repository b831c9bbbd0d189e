"""Guardrails and termination markers in a stock client: what was shown is corrected, and the conversation ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spade_coreason import AgentDefinition
from spade_coreason.llm import LLMAgent
from tests.llm.server import ChatServer, Wire, says
from tests.servers.clients import StockClient
from tests.servers.server import XmppServer
from tests.xmpp.hosting import hosted
from tests.xmpp.test_growing import CORRECTS, met, replaces


async def test_a_marker_in_pieces_ends_the_conversation_and_is_never_seen(prosody: XmppServer, tmp_path: Path) -> None:
    is_shown = asyncio.Event()

    async def goodbye(wire: Wire) -> None:
        for piece in ("The secret word, which nobody knows, is sword", "fish. B", "ye.<E"):
            await wire.delta(content=piece)
        await is_shown.wait()
        for piece in ("N", "D>"):
            await wire.delta(content=piece)
        await wire.done()

    rule = {"keywords": ["swordfish"], "action": "redact", "replacement": "***"}
    async with ChatServer(goodbye, says("Hello again.")) as server:
        agent = LLMAgent(
            AgentDefinition.simple("keeper"),
            model="small",
            endpoint={"url": server.url},
            output_guardrails=[rule],
            termination_markers=["<END>"],
        )
        account = await prosody.account()
        async with (
            hosted(agent, prosody, tmp_path) as online,
            StockClient(*account, prosody, plugins=CORRECTS) as person,
        ):
            await met(person, online)
            person.send("the word, and bye", online.jid)
            first = await person.answer()
            is_shown.set()
            last = await person.answer()
            assert (last["body"], replaces(last)) == ("The secret word, which nobody knows, is ***. Bye.", first["id"])
            assert last["body"].startswith(first["body"])
            await online.settled()
            assert [row.record.state for row in await online.store.conversations()] == ["completed"]
            assert await person.ask("hello?", online.jid) == "Hello again."
            await online.settled()
            assert [row.record.state for row in await online.store.conversations()] == ["active"]


async def test_what_a_stock_client_shows_of_a_blocked_answer_is_corrected(prosody: XmppServer, tmp_path: Path) -> None:
    is_shown = asyncio.Event()

    async def answer(wire: Wire) -> None:
        await wire.delta(content="I should not say it, but the password is sword")
        await is_shown.wait()
        await wire.delta(content="fish, as you know.")
        await wire.done()

    rule = {"keywords": ["swordfish"], "message": "That I keep to myself."}
    async with ChatServer(answer) as server:
        agent = LLMAgent(
            AgentDefinition.simple("keeper"), model="small", endpoint={"url": server.url}, output_guardrails=[rule]
        )
        account = await prosody.account()
        async with (
            hosted(agent, prosody, tmp_path) as online,
            StockClient(*account, prosody, plugins=CORRECTS) as person,
        ):
            await met(person, online)
            person.send("the password?", online.jid)
            first = await person.answer()
            assert first["body"].startswith("I should not say it")
            assert "sword" not in first["body"]
            is_shown.set()
            last = await person.answer()
            assert (last["body"], replaces(last)) == ("That I keep to myself.", first["id"])
            assert last.xml.find("{urn:xmpp:hints}store") is not None
            await online.settled()
            assert person.messages.empty()
