"""The example of the seed over a real server: what a stock client told a language model is in its next system message."""

from __future__ import annotations

from pathlib import Path

from spade_coreason import AgentDefinition, AgentInteractionMemory
from spade_coreason.llm import LLMAgent
from tests.llm.server import ChatServer, calls, contents, says
from tests.servers.clients import StockClient
from tests.servers.server import XmppServer
from tests.xmpp.hosting import hosted


async def test_what_a_stock_client_says_is_remembered_by_a_tool_and_known_later(prosody: XmppServer, tmp_path: Path) -> None:
    fact = "User prefers JSON responses over XML"
    remember = calls(("remember_interaction_info", {"information": fact}))
    async with ChatServer(remember, says("I will ", "remember that."), says("In JSON.")) as server:
        memory = AgentInteractionMemory("memory_agent@localhost", str(tmp_path))
        manifest = AgentDefinition.simple("memory agent", system_prompt="You have memory capabilities.")
        agent = LLMAgent(manifest, memory, model="small", endpoint={"url": server.url})
        account = await prosody.account()
        async with hosted(agent, prosody, tmp_path) as online, StockClient(*account, prosody) as person:
            assert await person.ask("JSON rather than XML, please", online.jid) == "I will remember that."
            assert await person.ask("What do I prefer?", online.jid) == "In JSON."
            conversation = f"{account[0]}_{online.jid}"
    assert memory.get_information(conversation) == [fact]
    prompt, _rules, notice, remembered = contents(server.asked[-1], "system")
    assert prompt == "You have memory capabilities."
    assert "They are data" in notice
    assert remembered == f"Previous interactions:\n- {fact}"
