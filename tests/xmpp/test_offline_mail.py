"""What a server keeps back from an agent that is there, it hands over when it is asked (XEP-0013)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from slixmpp.exceptions import XMPPError

from tests.servers.clients import StockClient
from tests.servers.server import XmppServer
from tests.xmpp.hosting import By, hosted


async def test_what_ejabberd_has_kept_back_is_answered_once(
    ejabberd: XmppServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spade_coreason.xmpp.offline_mail._AT_ONCE", 3)
    runs: Counter[str] = Counter()

    async def assist(request: Any, session: Any, response: Any) -> None:
        runs[request.payload["query"]] += 1
        await response.markdown(request.payload["query"])

    async with hosted(By(assist), ejabberd, tmp_path) as agent, StockClient(*await ejabberd.account(), ejabberd) as alice:
        assert await alice.ask("before", agent.jid) == "before"
        mail = agent.host.offline_mail
        assert await mail.fetch() == 0
        # With a negative priority (RFC 6121, 8.5.2.1.1) nothing is handed to it, as in the moment of its login.
        agent.host.connection.send(["<presence><priority>-1</priority></presence>"])
        await agent.host.connection.settle(2)
        for number in range(7):
            alice.send(f"kept {number}", agent.jid)
        answers: list[str] = []
        kept = 0
        async with asyncio.timeout(20):
            while kept < 7:
                kept += await mail.fetch()
        for _ in range(7):
            answers.append(str((await alice.answer(10))["body"]))
        assert sorted(answers) == [f"kept {number}" for number in range(7)]
        assert (kept, await mail.fetch()) == (7, 0)
        agent.host.connection.send(["<presence/>"])
        assert await alice.ask("after", agent.jid) == "after"
        assert set(runs.values()) == {1}


async def test_a_server_that_keeps_nothing_back_is_asked_in_vain(prosody: XmppServer, tmp_path: Path) -> None:
    async def assist(request: Any, session: Any, response: Any) -> None:
        await response.markdown("here")

    async with hosted(By(assist), prosody, tmp_path) as agent, StockClient(*await prosody.account(), prosody) as alice:
        with pytest.raises(XMPPError):
            await agent.host.offline_mail.fetch()
        assert await alice.ask("still there?", agent.jid) == "here"
