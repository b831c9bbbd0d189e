"""The platform on PostgreSQL, over a real server: people see no difference."""

from __future__ import annotations

import json
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Platform, ResponseHandler, SessionHandle, load_settings
from tests.support.databases import read_rows
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer


class CountingAgent:
    """Counts the turns in two ways."""

    manifest = AgentDefinition.simple("counts")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        number = await session.get("number", 0) + 1
        await session.store("number", number)
        await response.markdown(f"{number} {len(await session.history())}")


async def test_a_conversation_goes_on_after_a_restart(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    jid, password = await prosody.account()
    server = {"mode": "external", "host": prosody.host, "port": prosody.port, "tls": {"ca_file": str(prosody.ca_file)}}
    url = postgres.url()
    configuration = {
        "server": server,
        "storage": {"url": url},
        "agents": [{"jid": jid, "agent": f"{__name__}:CountingAgent", "password": password}],
    }
    (tmp_path / "platform.yaml").write_text(json.dumps(configuration))
    settings = load_settings(tmp_path / "platform.yaml", tmp_path, {})
    async with StockClient(*await prosody.account(), prosody) as alice:
        answers = []
        for _ in range(2):
            async with Platform(settings):
                answers += [await alice.ask("count", jid) for _ in range(2)]
    assert answers == ["1 0", "2 1", "3 2", "4 3"]
    assert [row["state"] for row in read_rows(url, "inbox")] == [2] * 4
    assert not (tmp_path / "data" / "platform.db").exists()
