"""What a person prefers, in their client: thoughts as lines of their own, an answer that does not grow."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.preferences import Preferences
from tests.support.hosting import FunctionAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S, eventually
from tests.xmpp.test_live_messages import CORRECTS, met, replaces

ACTIVE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
NO_STORE = "{urn:xmpp:hints}no-store"
COMPOSING = "{http://jabber.org/protocol/chatstates}composing"


class Thinker:
    """Thinks, says the beginning of its answer, and the rest when it may."""

    def __init__(self) -> None:
        self.agent = FunctionAgent(self.assist, "thinker")
        self.may = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.thought("Looking out of the window…")
        stream = await response.create_stream()
        await stream.write("It is ")
        await self.may.wait()
        await stream.write("sunny")
        await stream.close()


async def test_thoughts_are_shown_and_not_stored_and_an_answer_comes_whole_where_it_is_preferred_so(
    prosody_archive: XmppServer, tmp_path: Path
) -> None:
    thinker = Thinker()
    async with (
        run_agent(thinker.agent, prosody_archive, tmp_path) as agent,
        StockClient(*await prosody_archive.account(), prosody_archive, plugins=(*CORRECTS, "xep_0313")) as alice,
    ):
        await met(alice, agent)
        alice.send("as usual", agent.jid)
        grown = await alice.answer()
        assert (grown["body"], replaces(grown)) == ("It is", None)
        thinker.may.set()
        assert replaces(await alice.answer()) == grown["id"]
        thinker.may.clear()
        await agent.runner.set_preferences(alice.jid, Preferences(thoughts=True, streaming=False))
        alice.send("as preferred", agent.jid, thread="t", extra_xml=ACTIVE)
        thought = await alice.answer()
        assert (thought["body"], thought["thread"]) == ("_Looking out of the window…_", "t")
        assert [thought.xml.find(tag) is not None for tag in (NO_STORE, COMPOSING)] == [True, True]
        await eventually(lambda: agent.runner.turns_in_flight == 1)
        await asyncio.sleep(0.1)  # three times what first words take
        assert all(not message["body"] for message in alice.messages._queue)  # type: ignore[attr-defined]  # asyncio.Queue shows nobody what waits in it
        thinker.may.set()
        whole = await alice.answer()
        assert (whole["body"], replaces(whole), whole["thread"]) == ("It is sunny", None, "t")

        async def archived() -> list[str]:
            found = await alice.xmpp.plugin["xep_0313"].retrieve(rsm={"max": 50}, timeout=PATIENCE_S)
            return [m["mam_result"]["forwarded"]["stanza"]["body"] for m in found["mam"]["results"]]

        async with asyncio.timeout(PATIENCE_S):
            while (texts := await archived()) != ["as usual", "It is sunny", "as preferred", "It is sunny"]:
                assert len(texts) < 4, texts
                await asyncio.sleep(0.05)
