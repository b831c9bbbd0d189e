"""Guardrails and termination markers in a stock client: shown text is corrected, and the conversation ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spade_coreason import AgentDefinition
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.llm.agent import LLMAgent
from tests.support.chat_completions import Answer, ChatCompletionsServer, CompletionStream, message_contents, text_answer
from tests.support.hosting import OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.xmpp.muc.test_rooms import Person, new_room, wait_until_joined
from tests.xmpp.test_live_messages import CORRECTION_PLUGINS, corrected_id, wait_until_known


@asynccontextmanager
async def run_guarded_agent(
    server: XmppServer, tmp_path: Path, *answers: Answer, **options: Any
) -> AsyncIterator[tuple[OnlineAgent, StockClient]]:
    """An agent with these options whose model gives these answers, and a person whose client shows corrections."""
    async with ChatCompletionsServer(*answers) as model:
        agent = LLMAgent(AgentDefinition.simple("keeper"), model="small", endpoint={"url": model.url}, **options)
        account = await server.account()
        async with (
            run_agent(agent, server, tmp_path) as online,
            StockClient(*account, server, plugins=CORRECTION_PLUGINS) as person,
        ):
            await wait_until_known(person, online)
            yield online, person


async def test_a_marker_in_pieces_ends_the_conversation_and_is_never_seen(prosody: XmppServer, tmp_path: Path) -> None:
    is_shown = asyncio.Event()

    async def goodbye(wire: CompletionStream) -> None:
        for piece in ("The secret word, which nobody knows, is sword", "fish. B", "ye.<E"):
            await wire.delta(content=piece)
        await is_shown.wait()
        for piece in ("N", "D>"):
            await wire.delta(content=piece)
        await wire.done()

    rule = {"keywords": ["swordfish"], "action": "redact", "replacement": "***"}
    options: dict[str, Any] = {"output_guardrails": [rule], "termination_markers": ["<END>"]}
    async with run_guarded_agent(prosody, tmp_path, goodbye, text_answer("Hello again."), **options) as (online, person):
        person.send("the word, and bye", online.jid)
        first = await person.answer()
        is_shown.set()
        last = await person.answer()
        assert (last["body"], corrected_id(last)) == ("The secret word, which nobody knows, is ***. Bye.", first["id"])
        assert last["body"].startswith(first["body"])
        await online.settled()
        assert [row.contract_record.state for row in await online.repository.list_conversations()] == ["completed"]
        assert await person.ask("hello?", online.jid) == "Hello again."
        await online.settled()
        assert [row.contract_record.state for row in await online.repository.list_conversations()] == ["active"]


async def test_a_stock_client_corrects_the_shown_part_of_a_blocked_answer(prosody: XmppServer, tmp_path: Path) -> None:
    is_shown = asyncio.Event()

    async def answer(wire: CompletionStream) -> None:
        await wire.delta(content="I should not say it, but the password is sword")
        await is_shown.wait()
        await wire.delta(content="fish, as you know.")
        await wire.done()

    rule = {"keywords": ["swordfish"], "message": "That I keep to myself."}
    async with run_guarded_agent(prosody, tmp_path, answer, output_guardrails=[rule]) as (online, person):
        person.send("the password?", online.jid)
        first = await person.answer()
        assert first["body"].startswith("I should not say it")
        assert "sword" not in first["body"]
        is_shown.set()
        last = await person.answer()
        assert (last["body"], corrected_id(last)) == ("That I keep to myself.", first["id"])
        assert last.xml.find("{urn:xmpp:hints}store") is not None
        await online.settled()
        assert person.messages.empty()


async def test_nicknames_in_a_room_pass_the_input_guardrails(prosody: XmppServer, tmp_path: Path) -> None:
    rules: list[Any] = [
        {"keywords": ["swordfish"], "action": "redact"},
        {"name": "bombs", "keywords": ["bomb"], "message": "Not with me."},
        {"length": 8},  # of what is said
    ]
    room = new_room()
    async with ChatCompletionsServer(text_answer("Yes.")) as model:
        manifest = AgentDefinition.simple("keeper")
        agent = LLMAgent(manifest, model="small", endpoint={"url": model.url}, input_guardrails=rules)
        async with (
            StockClient(*await prosody.account(), prosody) as eve_client,
            StockClient(*await prosody.account(), prosody) as bob_client,
            run_agent(agent, prosody, tmp_path, rooms=[RoomConfig(room, "Keeper")]) as online,
        ):
            await wait_until_joined(online, room)
            eve, bob = await Person(eve_client, room, "The swordfish").enter(), await Person(bob_client, room, "bomb").enter()
            eve.say("Keeper: hello")
            assert (await eve.receive_from("Keeper"))["body"].endswith("Yes.")
            bob.say("Keeper: hi")
            assert (await bob.receive_from("Keeper"))["body"].endswith("Yes.")  # to the other
            assert (await bob.receive_from("Keeper"))["body"].endswith("Not with me.")
            eve.say("Keeper: and?")
            await eve.receive_from("Keeper")
            assert (await eve.receive_from("Keeper"))["body"].endswith("Yes.")
    assert message_contents(model.requests[-1], "user") == [
        '"The [removed]" says in the room: "hello"',
        '"somebody" says in the room: "(A message that was kept back.)"',
        '"The [removed]" says in the room: "and?"',
    ]
    assert len(model.requests) == 2
