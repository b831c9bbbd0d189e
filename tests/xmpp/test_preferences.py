"""A person's preferences in their client: thoughts as separate messages, an answer that does not grow."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.preferences import Preferences
from tests.support.hosting import FunctionAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.test_live_messages import CORRECTION_PLUGINS, corrected_id, wait_until_known

ACTIVE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
NO_STORE = "{urn:xmpp:hints}no-store"
COMPOSING = "{http://jabber.org/protocol/chatstates}composing"


class ThinkingAgent:
    """Emits a thought, then the beginning of its answer, and the rest when the test lets it."""

    def __init__(self) -> None:
        self.agent = FunctionAgent(self.assist, "thinker")
        self.release = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.thought("Looking out of the window…")
        stream = await response.create_stream()
        await stream.write("It is ")
        await self.release.wait()
        await stream.write("sunny")
        await stream.close()


async def test_thoughts_are_shown_and_not_stored_and_an_answer_comes_complete_if_preferred(
    prosody_archive: XmppServer, tmp_path: Path
) -> None:
    thinker = ThinkingAgent()
    async with (
        run_agent(thinker.agent, prosody_archive, tmp_path) as agent,
        StockClient(*await prosody_archive.account(), prosody_archive, plugins=(*CORRECTION_PLUGINS, "xep_0313")) as alice,
    ):
        await wait_until_known(alice, agent)
        alice.send("as usual", agent.jid)
        first = await alice.answer()
        assert (first["body"], corrected_id(first)) == ("It is", None)
        thinker.release.set()
        assert corrected_id(await alice.answer()) == first["id"]
        thinker.release.clear()
        await agent.runner.executor.context.loader.persons.set_preferences(
            alice.jid, Preferences(thoughts=True, streaming=False)
        )
        alice.send("as preferred", agent.jid, thread="t", extra_xml=ACTIVE)
        thought = await alice.answer()
        assert (thought["body"], thought["thread"]) == ("_Looking out of the window…_", "t")
        assert [thought.xml.find(tag) is not None for tag in (NO_STORE, COMPOSING)] == [True, True]
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        await asyncio.sleep(0.1)  # three times what first words take
        assert all(not message["body"] for message in alice.messages.unread())
        thinker.release.set()
        whole = await alice.answer()
        assert (whole["body"], corrected_id(whole), whole["thread"]) == ("It is sunny", None, "t")

        async def archived() -> list[str]:
            found = await alice.xmpp.plugin["xep_0313"].retrieve(rsm={"max": 50}, timeout=TIMEOUT_S)
            return [m["mam_result"]["forwarded"]["stanza"]["body"] for m in found["mam"]["results"]]

        async with asyncio.timeout(TIMEOUT_S):
            while (texts := await archived()) != ["as usual", "It is sunny", "as preferred", "It is sunny"]:
                assert len(texts) < 4, texts
                await asyncio.sleep(0.05)
