"""The interaction memory of a platform on PostgreSQL, over a real server: it survives the data directory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentRequest,
    Platform,
    ResponseHandler,
    SessionHandle,
    load_settings,
)
from spade_coreason.config import Settings
from spade_coreason.exceptions import MemoryFileError
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.program import run_command
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer


class FactsAgent:
    """Remembers what it is told, half of it without an await, and answers with everything that it knows."""

    manifest = AgentDefinition.simple("facts")

    def __init__(self, memory: AgentInteractionMemory) -> None:
        self.memory = memory

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        name, text = request.metadata["conversation_id"], request.payload["query"]
        self.memory.add_information(name, text)
        await self.memory.aadd_information(name, text.upper())
        await response.markdown(", ".join(self.memory.get_information(name)))


class Service:
    """Platforms of one agent over one database, each with a data directory of its own."""

    def __init__(self, server: XmppServer, url: str, directory: Path, account: tuple[str, str]) -> None:
        self.url, self.directory = url, directory
        self.jid, self.password = account
        self.configuration = {
            "server": server.settings,
            "storage": {"url": "${DB_URL}"},
            "agents": [{"jid": self.jid, "agent": f"{__name__}:FactsAgent", "password": "${AGENT_PASSWORD}"}],
        }

    def settings(self, name: str) -> Settings:
        """Return the settings of a platform with the data directory `name`."""
        file = self.directory / f"{name}.yaml"
        file.write_text(json.dumps({**self.configuration, "data_dir": name}))
        return load_settings(file, self.directory, {"DB_URL": self.url, "AGENT_PASSWORD": self.password})

    async def run(self, *arguments: str, of: str) -> str:
        """Run a command on the data of a platform, and return what it prints."""
        options = ["-c", f"{of}.yaml"]
        environment = {"DB_URL": self.url, "AGENT_PASSWORD": self.password}
        done = await asyncio.to_thread(run_command, *arguments, *options, cwd=self.directory, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
async def service(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> Service:
    return Service(prosody, postgres.url(), tmp_path, await prosody.account())


async def test_two_platforms_one_after_the_other_have_one_memory_and_the_commands_see_it(
    service: Service, prosody: XmppServer
) -> None:
    bob_account = await prosody.account()
    async with StockClient(*await prosody.account(), prosody) as alice, StockClient(*bob_account, prosody) as bob:
        one = f"{alice.jid}_{service.jid}"
        # What a platform with files has left.
        files = AgentInteractionMemory(service.jid, service.directory / "a" / "memory")
        files.add_information(one, "from a file")
        async with Platform(service.settings("a")):
            assert await alice.ask("tea", service.jid) == "from a file, tea, TEA"
            assert await bob.ask("mine", service.jid) == "mine, MINE"
        assert {path.suffix for path in (service.directory / "a" / "memory").iterdir()} == {".lock"}
        async with Platform(service.settings("b")):
            assert await alice.ask("milk", service.jid) == "from a file, tea, TEA, milk, MILK"
            assert "from a file" in await service.run("memory", "show", one, of="b")
            assert await service.run("memory", "compact", of="b") == (
                f"{service.jid}: the database has everything; there is no file.\n"
            )
            exported = service.directory / "exported.json"
            assert await service.run("memory", "export", str(exported), of="b") == (
                f"{service.jid}: wrote 7 entries to {exported}.\n"
            )
            await alice.ask("/forget me yes", service.jid)
        assert not list((service.directory / "b" / "memory").iterdir())
        left = execute(service.url, "SELECT conversation_id, entry FROM interaction_memory ORDER BY id")
        assert {row["conversation_id"] for row in left} == {f"{bob.jid}_{service.jid}"}
        # Nothing runs: the commands read and change the same table.
        assert "imported 5 entries" in await service.run("memory", "import", str(exported), of="b")
        assert one in await service.run("memory", "list", of="a")
        await service.run("memory", "clear", "--all", "--yes", of="a")
        assert await service.run("memory", "list", of="b") == "No interaction memories.\n"
        assert execute(service.url, "SELECT id FROM interaction_memory") == []


async def test_a_damaged_file_keeps_its_agent_offline_until_it_is_repaired(
    service: Service, prosody: XmppServer, expected_errors: ExpectedErrors
) -> None:
    expected_errors("is not complete JSON")
    settings = service.settings("a")
    files = AgentInteractionMemory(service.jid, settings.storage.memory_dir)
    async with StockClient(*await prosody.account(), prosody) as alice:
        files.add_information(f"{alice.jid}_{service.jid}", "from a file")
        files.flush()
        data = files.path.read_bytes()
        files.path.write_bytes(data[:-9])
        with pytest.raises(MemoryFileError, match="is not complete JSON"):
            async with Platform(settings):
                pass
        assert files.path.read_bytes() == data[:-9]
        files.path.write_bytes(data)
        async with Platform(settings):
            assert await alice.ask("tea", service.jid) == "from a file, tea, TEA"
