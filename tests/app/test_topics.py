"""Topics between processes on real servers: subscribers that are away, and a broker that is killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentClient, AgentRequest, Response, Session, subscribe
from spade_coreason.contracts import AgentDefinition
from spade_coreason.domain.jid import bare_jid
from spade_coreason.xmpp import ServerEndpoint
from tests.support.errors import check_errors, errors_in
from tests.support.hosting import PlatformProcess
from tests.support.line_log import append_line, read_lines
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


class JournalReader:
    """An agent that notes each item in a file. At "hold" it waits until the file `release` exists."""

    def __init__(self, directory: str) -> None:
        self.manifest = AgentDefinition.simple("reader")
        self._directory = Path(directory)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self._note("assist", request)

    @subscribe("news/+")
    async def on_news(self, request: AgentRequest, session: Session, response: Response) -> None:
        self._note("begins", request)
        if request.payload["title"] == "hold":
            await eventually((self._directory / "release").exists)
        self._note("ends", request)

    @subscribe("orders/+")
    async def on_order(self, request: AgentRequest, session: Session, response: Response) -> None:
        self._note("begins", request)
        await session.run_approved("refund", self._refund, request.payload["title"])
        if request.payload["title"] == "fails":
            await response.error("the till is closed")
        self._note("ends", request)

    def _refund(self, title: str) -> None:
        append_line(self._directory / "journal", "refunds", "orders/1", title)

    def _note(self, phase: str, request: AgentRequest) -> None:
        append_line(self._directory / "journal", phase, request.metadata.get("topic"), request.payload.get("title"))


class Newsroom:
    """A broker and a reader in processes of their own, and a program that publishes."""

    def __init__(
        self, directory: Path, broker: PlatformProcess, reader: PlatformProcess, jid: str, client: AgentClient, client_jid: str
    ) -> None:
        self._directory = directory
        self._journal = directory / "journal"
        self.broker = broker
        self.reader = reader
        self._jid = jid
        self._client = client
        self._client_jid = client_jid

    async def publish(self, topic: str, *titles: str) -> list[str]:
        """Publish items, and return their ids."""
        ids = []
        for title in titles:
            payload = {"topic": topic, "payload": {"title": title}}
            request = AgentRequest(session_id=uuid4(), payload=payload, metadata={"capability": "publish"})
            answer = await self._client.ask(self._jid, request)
            ids.append(answer.data[0]["data"]["item_id"])
        return ids

    async def restart_broker(self, **settings: Any) -> None:
        """Stop the broker, and start it with other settings of its agent."""
        assert await self.broker.signal(signal.SIGTERM) == 0
        configuration = self._directory / "broker.yaml"
        configured = json.loads(configuration.read_text())
        configured["agents"][0] |= settings
        configuration.write_text(json.dumps(configured))
        await self.broker.start()

    async def count_subscribers(self) -> int:
        """Count the subscribers that the broker shows to an operator."""
        return (await self.read_topics()).count("←")

    async def read_topics(self) -> str:
        """Return the topics and subscribers that the broker shows to an operator."""
        events = [event async for event in self._client.run_command(self._jid, "/topics")]
        return "\n".join(event.data["content"] for event in events if event.type == "block.markdown")

    async def wait_for_subscribers(self, number: int) -> None:
        """Wait until the broker has so many subscribers."""
        async with asyncio.timeout(TIMEOUT_S):
            while await self.count_subscribers() != number:  # noqa: ASYNC110 - it has no event here
                await asyncio.sleep(0.2)  # there is a limit of commands

    async def wait_until_nothing_waits(self) -> None:
        """Wait until no item waits for the subscriber."""
        async with asyncio.timeout(TIMEOUT_S):
            while ": 0 items wait" not in await self.read_topics():  # noqa: ASYNC110 - it has no event here
                await asyncio.sleep(0.2)  # there is a limit of commands

    @property
    def access_of_client(self) -> dict[str, Any]:
        """The rules of access that admit the client alone."""
        return {"allow": [], "operators": [self._client_jid]}

    def account_of(self, name: str) -> tuple[str, str]:
        """Return the JID and the password of an agent."""
        [agent] = json.loads((self._directory / f"{name}.yaml").read_text())["agents"]
        return bare_jid(agent["jid"]), agent["password"]

    def phases(self, phase: str, topic: str) -> list[str]:
        """Return the titles that the reader has noted, in their order."""
        return [title for noted, at, title in read_lines(self._journal) if (noted, at) == (phase, topic)]


@asynccontextmanager
async def run_newsroom(server: XmppServer, directory: Path, *operators: str) -> AsyncIterator[Newsroom]:
    """Run a broker and a reader on a server, with further operators."""
    accounts = {name: await server.account() for name in ("broker", "reader", "client")}
    jid, client_jid = (bare_jid(accounts[name][0]) for name in ("broker", "client"))
    agents: dict[str, dict[str, Any]] = {
        "broker": {"agent": "spade_coreason.agents.topics:TopicBroker", "options": {"retry_s": 0.05}},
        "reader": {"agent": "tests.app.test_topics:JournalReader", "options": {"directory": str(directory)}},
    }
    processes = {}
    for name, agent in agents.items():
        account, password = accounts[name]
        settings = {
            "server": server.settings,
            "data_dir": str(directory / name),
            "peers": {"topics": jid},
            "access": {"operators": [client_jid, *operators]},
            "agents": [{"jid": account, "password": password, **agent}],
        }
        configuration = directory / f"{name}.yaml"
        configuration.write_text(json.dumps(settings))
        configuration.chmod(0o600)
        processes[name] = PlatformProcess(configuration)
    client = AgentClient(*accounts["client"], ServerEndpoint(server.host, server.port, ca_file=server.ca_file))
    try:
        for process in processes.values():
            await process.start()
        async with client:
            room = Newsroom(directory, processes["broker"], processes["reader"], jid, client, client_jid)
            await room.wait_for_subscribers(1)  # the reader announces itself once it is online
            yield room
    finally:
        for process in processes.values():
            if process.process is not None:
                await process.signal(signal.SIGKILL)
    for process in processes.values():
        check_errors(errors_in(process.error_log.read_text()), [])


async def test_a_subscriber_that_was_away_gets_everything_once_and_in_order(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_newsroom(real_server, tmp_path) as room:
        await room.publish("news/sport", "0")
        await eventually(lambda: room.phases("ends", "news/sport") == ["0"])
        assert await room.reader.signal(signal.SIGTERM) == 0
        await room.publish("news/sport", "1", "2", "3")
        await room.publish("news/local", "a", "b")
        await room.publish("weather", "rain")
        await room.reader.start()
        await eventually(lambda: len(room.phases("ends", "news/sport") + room.phases("ends", "news/local")) == 6)
        await room.publish("news/sport", "4")
        await eventually(lambda: "4" in room.phases("ends", "news/sport"))
        assert room.phases("begins", "news/sport") == ["0", "1", "2", "3", "4"]
        assert room.phases("begins", "news/local") == ["a", "b"]
        assert await room.broker.signal(signal.SIGTERM) == 0


async def test_a_killed_broker_delivers_what_was_published_and_nothing_twice(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_newsroom(real_server, tmp_path) as room:
        await room.publish("news/sport", "0")
        await eventually(lambda: room.phases("ends", "news/sport") == ["0"])
        # Between publication and delivery.
        assert await room.reader.signal(signal.SIGTERM) == 0
        ids = await room.publish("news/sport", *map(str, range(1, 6)))
        assert len(set(ids)) == 5
        await room.broker.signal(signal.SIGKILL)
        await room.reader.start()
        await room.broker.start()
        await eventually(lambda: len(room.phases("ends", "news/sport")) >= 6)
        # While a handler runs.
        await room.publish("news/local", "hold", "after")
        await eventually(lambda: room.phases("begins", "news/local") == ["hold"])
        await room.broker.signal(signal.SIGKILL)
        await room.broker.start()
        (tmp_path / "release").touch()
        await room.publish("news/local", "last")
        await eventually(lambda: "last" in room.phases("ends", "news/local"))
        assert room.phases("ends", "news/local") == ["hold", "after", "last"]
        assert room.phases("begins", "news/local") == ["hold", "after", "last"]
        assert room.phases("begins", "news/sport") == ["0", "1", "2", "3", "4", "5"]
        assert not Counter(room.phases("assist", "news/sport"))
        assert await room.reader.signal(signal.SIGTERM) == 0
        assert await room.broker.signal(signal.SIGTERM) == 0


async def test_a_killed_subscriber_gets_the_item_on_which_it_worked_again(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_newsroom(real_server, tmp_path) as room:
        await room.publish("news/sport", "hold", "after")
        await eventually(lambda: room.phases("begins", "news/sport") == ["hold"])
        await room.reader.signal(signal.SIGKILL)
        (tmp_path / "release").touch()
        await room.reader.start()
        await eventually(lambda: "after" in room.phases("ends", "news/sport"))
        assert room.phases("ends", "news/sport") == ["hold", "after"]
        assert room.phases("begins", "news/sport") == ["hold", "hold", "after"]


class Approver:
    """A person's client that collects the codes of approvals, and how often each order was asked for."""

    def __init__(self, client: StockClient) -> None:
        self.client = client
        self.codes: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self._ids: set[str] = set()

    async def wait_for(self, *titles: str) -> None:
        """Wait until an approval of each order was asked for."""
        while not {*titles} <= self.codes.keys():
            message = await self.client.answer()
            body = str(message["body"])
            if message["id"] in self._ids:
                continue  # a copy of an earlier message, after a kill
            self._ids.add(message["id"])
            if (code := re.search(r"/approve ([A-Z0-9]{6})", body)) is None:
                continue
            [title] = [title for title in titles if title in body]
            self.codes[title] = code[1]
            self.asked[title] += 1

    def approve(self, agent: str, title: str) -> None:
        self.client.send(f"/approve {self.codes[title]}", agent)


async def test_an_item_that_waits_for_its_approval_is_approved_and_run_once_over_kills_of_both_sides(
    real_server: XmppServer, tmp_path: Path
) -> None:
    account = await real_server.account()
    async with (
        StockClient(*account, real_server) as client,
        run_newsroom(real_server, tmp_path, bare_jid(account[0])) as room,
    ):
        boss, reader = Approver(client), room.account_of("reader")[0]
        await room.publish("orders/1", "first", "second", "fails", "third")
        await boss.wait_for("first", "second", "fails", "third")  # none holds up the next ones
        for process in (room.broker, room.reader, room.broker):
            await process.signal(signal.SIGKILL)
            await process.start()
            await room.wait_for_subscribers(1)
        boss.approve(reader, "second")
        await eventually(lambda: room.phases("ends", "orders/1") == ["second"])
        # The broker is away while the reader goes on, and is killed once more after it.
        await room.broker.signal(signal.SIGKILL)
        for title in ("fails", "first"):
            boss.approve(reader, title)
        await eventually(lambda: "first" in room.phases("ends", "orders/1"))
        await room.reader.signal(signal.SIGKILL)
        await room.reader.start()
        await room.broker.start()
        boss.approve(reader, "third")
        await eventually(lambda: "third" in room.phases("ends", "orders/1"))
        await room.publish("orders/1", "last")
        await boss.wait_for("last")
        boss.approve(reader, "last")
        await eventually(lambda: "last" in room.phases("ends", "orders/1"))
        await room.wait_until_nothing_waits()
        assert Counter(room.phases("refunds", "orders/1")) == Counter(["first", "second", "fails", "third", "last"])
        assert boss.asked == Counter(["first", "second", "fails", "third", "last"])
        assert await room.reader.signal(signal.SIGTERM) == 0
        assert await room.broker.signal(signal.SIGTERM) == 0


@pytest.mark.parametrize("right", ["rule", "access"])
async def test_a_broker_that_starts_with_other_rules_delivers_no_item_by_the_former_ones(
    real_server: XmppServer, tmp_path: Path, right: str
) -> None:
    async with run_newsroom(real_server, tmp_path) as room:
        await room.publish("news/sport", "0")
        await eventually(lambda: room.phases("ends", "news/sport") == ["0"])
        await room.publish("news/local", "hold", "waits")
        await eventually(lambda: room.phases("begins", "news/local") == ["hold"])
        rules = {"retry_s": 0.05, "subscribe": {"weather/#": ["*"]}}
        await room.restart_broker(**({"options": rules} if right == "rule" else {"access": room.access_of_client}))
        (tmp_path / "release").touch()
        await room.publish("news/sport", "after")
        assert await room.count_subscribers() == 0  # so nothing is on its way
        # The right comes back, and the reader with it.
        assert await room.reader.signal(signal.SIGTERM) == 0
        await room.restart_broker(options={"retry_s": 0.05}, access={**room.access_of_client, "allow": [real_server.domain]})
        await room.reader.start()
        await room.wait_for_subscribers(1)
        await room.publish("news/sport", "again")
        await eventually(lambda: "again" in room.phases("ends", "news/sport"))
        assert room.phases("begins", "news/sport") == ["0", "again"]
        assert room.phases("begins", "news/local") == ["hold"]


async def test_a_subscriber_that_the_roster_admits_loses_its_subscription_with_its_entry(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_newsroom(real_server, tmp_path) as room,
        StockClient(*room.account_of("broker"), real_server, resource="administrator", priority=None) as administrator,
    ):
        reader = bare_jid(room.account_of("reader")[0])
        await room.publish("news/sport", "0")
        await eventually(lambda: room.phases("ends", "news/sport") == ["0"])
        await administrator.xmpp.get_roster(timeout=TIMEOUT_S)
        await administrator.xmpp.update_roster(reader)
        await room.restart_broker(access={**room.access_of_client, "roster": True})
        assert await room.count_subscribers() == 1
        await room.publish("news/sport", "1")
        await eventually(lambda: room.phases("ends", "news/sport") == ["0", "1"])
        await administrator.xmpp.del_roster_item(reader)
        await room.wait_for_subscribers(0)
        await room.publish("news/sport", "2")
        assert await room.count_subscribers() == 0
        assert room.phases("begins", "news/sport") == ["0", "1"]
