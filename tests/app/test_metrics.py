"""The metrics of a running platform, scraped by HTTP and read as Prometheus does."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from spade_coreason import AgentClient, AgentDefinition, AgentRequest, Platform, Response, Session, load_settings
from spade_coreason.app.metrics import definitions
from spade_coreason.app.metrics.collector import LeaseFigures, MetricsCollector
from spade_coreason.app.metrics.stored_figures import StoredFigures
from spade_coreason.cli.checks import check_settings
from spade_coreason.cli.errors import format_error
from spade_coreason.contracts import CloudEvent
from spade_coreason.exceptions import PeerFailedError, PeerParkedError, PeerRefusedError, ServerError
from spade_coreason.memory import USAGE_EVENT
from spade_coreason.runtime import OutboundMessage
from spade_coreason.runtime.observability.metrics import Outcome, Redelivery, RefusalReason
from spade_coreason.storage import Database
from spade_coreason.xmpp.servers.process import find_free_ports
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, RunningPlatform, Tunnel, run_agent
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

DESK, ECHO, CLOSED = "desk@localhost", "echo@localhost", "closed@localhost"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ECHO_AGENT = "spade_coreason.agents.echo:EchoAgent"
AGENTS: list[dict[str, Any]] = [
    {"jid": DESK, "agent": "tests.app.test_metrics:Desk"},
    {"jid": ECHO, "agent": ECHO_AGENT, "doors": ["openai"], "quotas": {"person": {"user": {"messages_per_minute": 2}}}},
    {"jid": CLOSED, "agent": ECHO_AGENT, "access": {"allow": []}},
]


class Desk:
    """An agent that does what the text says."""

    began, end = threading.Event(), threading.Event()
    """It has begun to block the event loop; it is to end that."""
    waits = asyncio.Event()
    """Set while a turn waits for its cancellation."""

    manifest = AgentDefinition.simple("desk")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        match request.payload["query"]:
            case "fail":
                raise ValueError("told to fail")
            case "report":
                await response.error("told to report")
            case "ask":
                await response.ask_person("Go on?")
            case "remind":
                await session.remind("0 8 * * *", "good morning")
            case "think":
                await response.emit(CloudEvent(type=USAGE_EVENT, source="urn:test", data={"total_tokens": 18}))
            case "block":
                self.began.set()
                self.end.wait(TIMEOUT_S)
            case "wait":
                self.waits.set()
                await asyncio.Event().wait()
        await response.markdown("done")


class Scraped:
    """The values of a scrape."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in parse_text(text)}
        self._values = {
            (sample.name.removeprefix("spade_coreason_"), frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }
        self.labels = {name for _, labels in self._values for name, _ in labels}

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return the value of a series; None if it is missing."""
        return self._values.get((name, frozenset(labels.items())))


def fetch(address: str, query: str = "", accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://{address}/metrics{query}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return str(reply.read().decode())


async def scrape(address: str) -> Scraped:
    return Scraped(await asyncio.to_thread(fetch, address))


async def scrape_until(address: str, condition: Callable[[Scraped], bool]) -> Scraped:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition(scraped := await scrape(address)):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    return scraped


@asynccontextmanager
async def run_measured(
    directory: Path, agents: Iterable[object] = AGENTS, **settings: Any
) -> AsyncIterator[tuple[RunningPlatform, str]]:
    """Run a platform with metrics at a free port, and yield their address too."""
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    async with RunningPlatform.start(directory, list(agents), metrics={"listen": address}, **settings) as running:
        yield running, address


def write_configuration(directory: Path, listen: str) -> Path:
    values = {"server": {"mode": "embedded"}, "data_dir": str(directory / "data"), "metrics": {"listen": listen}}
    file = directory / "platform.yaml"
    file.write_text(json.dumps({**values, "agents": [{"jid": ECHO, "agent": ECHO_AGENT}]}))
    return file


@pytest.mark.embedded
async def test_requests_are_counted_by_outcome_and_agent(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")
    async with run_measured(tmp_path) as (_, address), AgentClient.guest(tmp_path / "data") as client:
        before = await scrape(address)
        assert (before("agent_online", agent=DESK), before("requests_total", agent=DESK, outcome="answered")) == (1, 0)
        for text in ("hello", "think", "remind"):
            await client.ask(DESK, text, timeout=TIMEOUT_S)
        for text in ("fail", "report"):
            with pytest.raises(PeerFailedError):
                await client.ask(DESK, text, timeout=TIMEOUT_S)
        with pytest.raises(PeerParkedError):
            await client.ask(DESK, "ask", timeout=TIMEOUT_S)
        assert [event.type async for event in client.run_command(DESK, "/help")][-1] == "request.completed"
        for _ in range(2):
            await client.ask(ECHO, "hello", timeout=TIMEOUT_S)
        with pytest.raises(PeerRefusedError):
            await client.ask(ECHO, "hello", timeout=TIMEOUT_S)
        with pytest.raises(PeerRefusedError):
            await client.ask(CLOSED, "hello", timeout=TIMEOUT_S)
        Desk.waits = asyncio.Event()
        request = AgentRequest(session_id=uuid4(), payload={"query": "wait"})
        waiting = asyncio.create_task(client.ask(DESK, request, thread="other", timeout=TIMEOUT_S))
        await Desk.waits.wait()
        busy = await scrape(address)
        assert busy("turns_in_flight", agent=DESK) == 1
        client.cancel(DESK, request)
        measured = await scrape_until(
            address,
            lambda now: (now("requests_total", agent=DESK, outcome="cancelled"), now("turns_in_flight", agent=DESK)) == (1, 0),
        )
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        def outcomes(agent: str) -> dict[str, float | None]:
            return {name: measured("requests_total", agent=agent, outcome=name) for name in definitions.OUTCOMES}

        none = dict.fromkeys(definitions.OUTCOMES, 0)
        assert outcomes(DESK) == none | {"answered": 3, "failed": 2, "parked": 1, "command": 1, "cancelled": 1}
        assert outcomes(ECHO) == none | {"answered": 2, "refused": 1}
        assert outcomes(CLOSED) == none | {"refused": 1}
        assert measured("refusals_total", agent=ECHO, reason="quota") == 1
        assert measured("refusals_total", agent=CLOSED, reason="access") == 1
        assert measured("failures_total", agent=DESK) == 2
        assert (measured("tokens_total", agent=DESK), measured("tokens_total", agent=ECHO)) == (18, 0)
        assert measured("sessions_total", agent=DESK) == 1
        for name, agent, number in (("request", ECHO, 2), ("turn", ECHO, 2), ("request", DESK, 6), ("turn", DESK, 6)):
            assert measured(f"{name}_seconds_count", agent=agent) == number
            assert measured(f"{name}_seconds_bucket", agent=agent, le="+Inf") == number
            assert measured(f"{name}_seconds_bucket", agent=agent, le="300.0") == number
            assert 0 < (measured(f"{name}_seconds_sum", agent=agent) or 0) < 300 * number
        stored = measured("commits_total", outcome="stored")
        assert stored is not None
        assert stored >= 12  # each request and each reply
        assert measured("commits_total", outcome="failed") == 0
        assert 0 < (measured("transactions_total") or 0) <= stored
        assert measured("storage_failing") == 0
        assert measured.labels <= {label for metric in definitions.METRICS for label in metric.labels} | {"le"}


@pytest.mark.embedded
async def test_metrics_name_no_person_and_no_text(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")
    async with run_measured(tmp_path) as (_, address), AgentClient.guest(tmp_path / "data") as client:
        for text in ("fail", "report"):
            with pytest.raises(PeerFailedError):
                await client.ask(DESK, text, timeout=TIMEOUT_S)
        await client.ask(DESK, "remind", thread="secret-thread", timeout=TIMEOUT_S)
        with pytest.raises(PeerRefusedError):
            await client.ask(CLOSED, "hello", timeout=TIMEOUT_S)
        scraped = await asyncio.to_thread(fetch, address)
        assert DESK in scraped
        assert [word for word in ("guest", "told to", "hello", "good morning", "secret") if word in scraped] == []


@pytest.mark.embedded
async def test_what_is_stored_is_counted_by_state(tmp_path: Path) -> None:
    async with run_measured(tmp_path) as (_, address), AgentClient.guest(tmp_path / "data") as client:
        await client.ask(DESK, "remind", timeout=TIMEOUT_S)
        with pytest.raises(PeerParkedError):
            await client.ask(DESK, "ask", thread="other", timeout=TIMEOUT_S)
        scraped = await scrape(address)  # the first scrape asks the database, and waits for it
        assert scraped("schedules", agent=DESK, state="waiting") == 1
        assert scraped("conversations", agent=DESK, state="active") == 2
        assert scraped("questions_open", agent=DESK) == scraped("requests_parked", agent=DESK) == 1
        assert scraped("questions_open", agent=ECHO) == scraped("requests_parked", agent=ECHO) == 0
        await client.ask(ECHO, "hello", timeout=TIMEOUT_S)
        assert (await scrape(address))("conversations", agent=ECHO, state="active") is None  # not asked again so soon
        assert ((await scrape(address))("stored_counts_age_seconds") or 0) > 0


@pytest.mark.embedded
async def test_a_scrape_is_answered_while_an_agent_blocks_the_event_loop(tmp_path: Path) -> None:
    Desk.began, Desk.end = threading.Event(), threading.Event()

    def scrape_meanwhile(address: str) -> Scraped:
        try:
            assert Desk.began.wait(TIMEOUT_S)
            return Scraped(fetch(address))
        finally:
            Desk.end.set()

    async with run_measured(tmp_path) as (_, address), AgentClient.guest(tmp_path / "data") as client:
        idle = await scrape(address)
        scraping = asyncio.create_task(asyncio.to_thread(scrape_meanwhile, address))
        await client.ask(DESK, "block", timeout=TIMEOUT_S)
        blocked = await scraping
        assert (blocked("turns_in_flight", agent=DESK), idle("turns_in_flight", agent=DESK)) == (1, 0)
        assert (blocked("event_loop_delay_seconds") or 0) > (idle("event_loop_delay_seconds") or 0)
        assert blocked("requests_total", agent=DESK, outcome="answered") == 0
        after = await scrape(address)
        assert after("requests_total", agent=DESK, outcome="answered") == 1


@pytest.mark.embedded
async def test_a_scrape_can_ask_for_some_metrics_by_name(tmp_path: Path) -> None:
    async with run_measured(tmp_path) as (_, address):
        text = await asyncio.to_thread(fetch, address, "?name[]=spade_coreason_info&name[]=spade_coreason_sessions_total")
        assert set(Scraped(text).families) == {"spade_coreason_info", "spade_coreason_sessions"}
        assert "process_cpu_seconds" in (await scrape(address)).families


@pytest.mark.embedded
async def test_prometheus_reads_the_same_as_openmetrics(tmp_path: Path) -> None:
    async with run_measured(tmp_path) as (_, address), AgentClient.guest(tmp_path / "data") as client:
        await client.ask(ECHO, "hello", timeout=TIMEOUT_S)
        await scrape(address)  # what is stored is counted now, and not again
        texts = [await asyncio.to_thread(fetch, address, accept=accept) for accept in ("text/plain", OPENMETRICS)]
        assert texts[1].endswith("# EOF\n")
        found = list(parse_text(texts[0])), list(parse_openmetrics(texts[1]))  # type: ignore[no-untyped-call]
        plain, open_metrics = (
            {sample.name for family in families for sample in family.samples if not sample.name.startswith("process_")}
            for families in found
        )
        assert plain == open_metrics
        assert {f"spade_coreason_request_seconds{suffix}" for suffix in ("_bucket", "_count", "_sum")} <= open_metrics


@pytest.mark.embedded
async def test_answers_of_the_doors_are_counted_by_status(tmp_path: Path) -> None:
    async with run_measured(tmp_path) as (running, address):
        web = running.platform.settings.web
        assert web is not None
        _, silent = await asyncio.open_connection(web.host, web.port)
        await scrape_until(address, lambda now: now("http_connections") == 1)
        silent.close()
        for path in ("/healthz", "/healthz", "/v1/models"):
            reader, writer = await asyncio.open_connection(web.host, web.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\nConnection: close\r\n\r\n".encode())
            assert await reader.read()
            writer.close()
        scraped = await scrape_until(address, lambda now: now("http_connections") == 0)
        assert (scraped("http_responses_total", code="200"), scraped("http_responses_total", code="401")) == (2, 1)
        assert scraped("http_refused_connections_total") == 0


@pytest.mark.embedded
async def test_nothing_listens_without_the_section_and_only_this_machine_with_it(tmp_path: Path) -> None:
    async with RunningPlatform.start(tmp_path, [{"jid": ECHO, "agent": ECHO_AGENT}]) as running:
        assert running.platform.settings.metrics is None
        assert running.platform._metrics is None
        assert running.platform.runners[ECHO].metrics.latencies is None  # so turns pay nothing
        assert "prometheus_client" not in await asyncio.to_thread(_modules_of_a_platform_without_metrics)
    async with run_measured(tmp_path) as (_, address):
        elsewhere = address.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(fetch, elsewhere)


def _modules_of_a_platform_without_metrics() -> str:
    program = "import sys, spade_coreason.app.platform; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout


@pytest.mark.embedded
async def test_requests_that_come_again_are_counted_also_after_a_restart(tmp_path: Path) -> None:
    request = AgentRequest(session_id=uuid4(), payload={"query": "hello"})
    async with run_measured(tmp_path) as (running, address), AgentClient.guest(tmp_path / "data") as client:
        assert (await client.ask(DESK, request, timeout=TIMEOUT_S)).text == (
            await client.ask(DESK, request, timeout=TIMEOUT_S)
        ).text
        again = await scrape_until(address, lambda now: now("delivery_seconds_count", agent=DESK) == 2)  # one answer, twice
        assert again("redeliveries_total", agent=DESK, kind="duplicate") == 1
        assert again("requests_total", agent=DESK, outcome="answered") == 1
        await running.call("agents.pause", agent=DESK)
        asking = asyncio.create_task(client.ask(DESK, "hello", timeout=TIMEOUT_S))
        waiting = await scrape_until(address, lambda now: now("requests_waiting", agent=DESK) == 1)
        assert waiting("requests_waiting", agent=ECHO) == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with run_measured(tmp_path) as (running, address):
        recovered = await scrape(address)
        assert recovered("redeliveries_total", agent=DESK, kind="recovered") == 1
        assert recovered("requests_waiting", agent=DESK) == recovered("agent_paused", agent=DESK) == 1
        assert recovered("requests_total", agent=DESK, outcome="answered") == 0
        await running.call("agents.resume", agent=DESK)
        await scrape_until(address, lambda now: now("requests_total", agent=DESK, outcome="answered") == 1)


@pytest.mark.servers
async def test_a_delivery_is_counted_once_the_server_has_acknowledged_it(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    server = {"mode": "prosody"}
    async with run_measured(tmp_path, server=server) as (_, address), AgentClient.guest(tmp_path / "data") as client:
        await client.ask(ECHO, "hello", timeout=TIMEOUT_S)
        delivered = await scrape_until(address, lambda now: now("delivery_seconds_count", agent=ECHO) == 1)
        assert delivered("requests_total", agent=ECHO, outcome="answered") == 1
        assert delivered("stanzas_unacknowledged", agent=ECHO) == delivered("stanzas_waiting", agent=ECHO) == 0


async def test_writes_that_fail_are_counted(database: Database) -> None:
    collector = MetricsCollector([], {}, database, StoredFigures(database), lambda: None)

    async def read() -> dict[str, float]:
        families = await asyncio.to_thread(lambda: list(collector.collect()))
        [commits] = [family for family in families if family.name == "spade_coreason_commits"]
        return {sample.labels["outcome"]: sample.value for sample in commits.samples}

    before = await read()
    stored, failed = database.run(lambda connection: True), database.run(lambda connection: 1 // 0)
    assert (await stored.wait(), await failed.wait()) == (True, False)
    after = await read()
    assert {outcome: after[outcome] - before[outcome] for outcome in after} == {"stored": 1, "failed": 1}


def read_single_values(collector: MetricsCollector) -> dict[str, float]:
    return {family.name: family.samples[0].value for family in collector.collect()}


async def test_writes_that_wait_for_the_next_transaction_are_counted(database: Database) -> None:
    collector = MetricsCollector([], {}, database, StoredFigures(database), lambda: None)
    writes = [database.run(lambda connection: None) for _ in range(3)]
    with ThreadPoolExecutor(1) as threads:  # the event loop does not run meanwhile, so no transaction begins
        during = threads.submit(read_single_values, collector).result(TIMEOUT_S)["spade_coreason_writes_pending"]
    assert [await write.wait() for write in writes] == [True] * 3
    after = (await asyncio.to_thread(read_single_values, collector))["spade_coreason_writes_pending"]
    assert (during, after) == (3, 0)


async def test_what_the_server_has_not_taken_is_counted_until_it_has(prosody: XmppServer, tmp_path: Path) -> None:
    timings = ConnectionTimings(resumption_wait_s=0.1)
    async with (
        Tunnel(prosody) as tunnel,
        run_agent(Echo(), prosody, tmp_path, port=tunnel.port, timings=timings) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        jid, connection = agent.jid, agent.host.connection
        collector = MetricsCollector([jid], {jid: agent.host}, agent.database, StoredFigures(agent.database), lambda: None)

        async def read() -> Scraped:
            return Scraped((await asyncio.to_thread(generate_latest, collector)).decode())

        def send(count: int) -> None:
            text = f"<message to='{alice.jid}' type='chat'><body>hello</body></message>"
            connection.send([OutboundMessage(alice.jid, text) for _ in range(count)])

        assert await alice.ask("hello", jid) == "hello"
        assert await connection.wait_until_acknowledged(TIMEOUT_S)
        tunnel.dropped_direction = "to the server"
        send(100)
        waiting = await read()
        unacknowledged = waiting("stanzas_unacknowledged", agent=jid) or 0
        assert 0 < unacknowledged < 100
        assert waiting("stanzas_waiting", agent=jid) == 100 - unacknowledged
        tunnel.dropped_direction = ""
        tunnel.cut()
        assert [(await alice.answer())["body"] for _ in range(100)] == ["hello"] * 100
        assert await connection.wait_until_acknowledged(TIMEOUT_S)
        resumed = await read()
        assert resumed("stanzas_unacknowledged", agent=jid) == resumed("stanzas_waiting", agent=jid) == 0
        assert (resumed("sessions_total", agent=jid), resumed("resumptions_total", agent=jid)) == (1, 1)
        assert resumed("redeliveries_total", agent=jid, kind="resent") == 0
        tunnel.dropped_direction = "to the server"
        send(3)
        await eventually(lambda: connection.send_queue.unacknowledged_count == 3)
        connection.client.stream_management.sm_id = None  # no resumption: a new session
        tunnel.dropped_direction = ""
        tunnel.cut()
        assert [(await alice.answer())["body"] for _ in range(3)] == ["hello"] * 3
        anew = await read()
        assert (anew("sessions_total", agent=jid), anew("resumptions_total", agent=jid)) == (2, 1)
        assert anew("redeliveries_total", agent=jid, kind="resent") == 3


async def test_what_is_stored_is_counted_again_when_that_is_due(database: Database) -> None:
    seldom, often = StoredFigures(database, interval_s=3600), StoredFigures(database, interval_s=0)
    for figures in (seldom, often):
        while figures.counts is None:  # on a busy machine it goes on after a refresh
            await asyncio.to_thread(figures.refresh)
        assert not any(figures.counts.values())
    columns = "id, agent, key, owner, root, request, digest, channel, message_ids, parked_at"
    row = f"INSERT INTO parked_requests ({columns}) VALUES (1, '{DESK}', '', '', '', '', '', '', '[]', 0)"
    await database.write(lambda connection: connection.exec_driver_sql(row))
    while often.counts == seldom.counts:
        await asyncio.to_thread(often.refresh)
        await asyncio.to_thread(seldom.refresh)
    assert often.counts is not None
    assert {table: numbers for table, numbers in often.counts.items() if numbers} == {"parked_requests": {(DESK, DESK): 1}}


@pytest.mark.embedded
async def test_the_address_is_closed_with_the_platform(tmp_path: Path) -> None:
    async with run_measured(tmp_path) as (_, address):
        await scrape(address)
    host, _, port = address.partition(":")
    with socket.create_server((host, int(port))):
        pass


async def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        settings = load_settings(write_configuration(tmp_path, listen), tmp_path, {})
        problem = f"{listen} is in use; stop the program that listens there, or choose another metrics.listen"
        problem += " (one of several workers: by SPADE_COREASON_METRICS__LISTEN)"
        with pytest.raises(ServerError) as raised:
            async with Platform(settings):
                pass
        assert format_error(raised.value) == f"{settings.place('metrics.listen')}: {problem}"
        [finding] = [each for each in await check_settings(settings) if each.subject == "metrics"]
        assert (finding.verdict, finding.text.endswith(problem)) == ("bad", True)


async def test_the_check_shows_the_address_and_who_may_read_it(tmp_path: Path) -> None:
    port = find_free_ports(1)[0]
    for listen, verdict in ((f"127.0.0.1:{port}", "good"), (f"0.0.0.0:{port}", "note")):
        settings = load_settings(write_configuration(tmp_path, listen), tmp_path, {})
        [finding] = [each for each in await check_settings(settings) if each.subject == "metrics"]
        assert (finding.verdict, finding.text.startswith(f"http://{listen}/metrics")) == (verdict, True)
        assert ("let your firewall" in finding.text) == (verdict == "note")


def test_without_its_package_the_section_says_what_to_install(tmp_path: Path) -> None:
    write_configuration(tmp_path, "127.0.0.1:9464")
    program = (
        "from importlib.machinery import PathFinder\n"
        "from pathlib import Path\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'prometheus_client' else find(name, *rest)\n"
        "from spade_coreason import load_settings\n"
        "try:\n    load_settings(Path('platform.yaml'), Path(), {})\n"
        "except Exception as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert "metrics: needs the extra metrics; run: pip install" in done.stdout


async def test_the_lease_of_a_worker_is_shown_if_there_is_one(database: Database) -> None:
    async def read(find_lease: Callable[[], LeaseFigures] | None) -> dict[str, float]:
        collector = MetricsCollector([], {}, database, StoredFigures(database), lambda: None, find_lease)
        families = await asyncio.to_thread(lambda: list(collector.collect()))
        return {family.name.removeprefix("spade_coreason_"): family.samples[0].value for family in families}

    lease = {"lease_seconds_left": 4.5, "agents_owned": 3, "takeovers": 2}
    assert lease.keys().isdisjoint(await read(None))
    assert lease.items() <= (await read(lambda: LeaseFigures(4.5, 3, 2))).items()


def test_the_page_explains_each_value_of_a_label() -> None:
    assert set(definitions.OUTCOMES) == {*get_args(Outcome), "refused"}
    assert set(definitions.REASONS) == {*get_args(RefusalReason), "flood"}
    assert set(definitions.REDELIVERY_KINDS) == set(get_args(Redelivery))
