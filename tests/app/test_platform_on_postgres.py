"""The platform on PostgreSQL, over a real server: people see no difference."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Platform, ResponseHandler, SessionHandle, load_settings
from tests.support.databases import read_rows
from tests.support.program import run_command
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


async def test_commands_without_a_configuration_read_the_database_of_the_running_platform(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    """Without this they read an empty data directory, and said that there are no sessions."""
    jid, password = await prosody.account()
    url = postgres.url()
    configuration = {
        "server": prosody.settings,
        "storage": {"url": "${DB_URL}"},
        "agents": [{"jid": jid, "agent": f"{__name__}:CountingAgent", "password": "${AGENT_PASSWORD}"}],
    }
    (tmp_path / "production.yaml").write_text(json.dumps(configuration))
    settings = load_settings(tmp_path / "production.yaml", tmp_path, {"DB_URL": url, "AGENT_PASSWORD": password})

    async def run(*arguments: str, db_url: str | None = url) -> subprocess.CompletedProcess[str]:
        environment = {} if db_url is None else {"DB_URL": db_url}
        return await asyncio.to_thread(run_command, *arguments, cwd=tmp_path, env=environment)

    async with Platform(settings), StockClient(*await prosody.account(), prosody) as alice:
        await alice.ask("count", jid)
        for command in ("sessions list", "conversations", "storage check"):
            shown = await run(*command.split())
            assert (shown.returncode, shown.stderr) == (0, "")
            assert alice.jid in shown.stdout or "conversations 1" in shown.stdout
        assert "the environment variable DB_URL is not set" in (await run("sessions", "list", db_url=None)).stderr
        other = await run("sessions", "list", db_url="postgresql+asyncpg://127.0.0.1:9/other")
        assert (other.returncode, "storage.url: the running platform uses postgresql+asyncpg://" in other.stderr) == (2, True)
    shown = await run("sessions", "list")
    assert shown.stdout == "No sessions: nothing is stored in data yet.\n"


def test_without_its_database_up_ends_with_a_code_after_which_a_service_manager_tries_again(tmp_path: Path) -> None:
    configuration = {
        "server": {"mode": "embedded"},
        "storage": {"url": "postgresql+asyncpg://me:s3cret@127.0.0.1:1/name"},
        "agents": [{"jid": "agent@localhost", "agent": f"{__name__}:CountingAgent"}],
    }
    (tmp_path / "platform.yaml").write_text(json.dumps(configuration))
    (tmp_path / "platform.yaml").chmod(0o600)
    ended = run_command("up", "-c", "platform.yaml", cwd=tmp_path)
    assert ended.returncode == 4
    assert ended.stderr.startswith("error: platform.yaml: storage.url: postgresql://127.0.0.1:1/name: ")
    assert "s3cret" not in ended.stderr


async def test_a_conversation_goes_on_after_a_restart(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    jid, password = await prosody.account()
    url = postgres.url()
    configuration = {
        "server": prosody.settings,
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
