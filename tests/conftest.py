"""Fixtures of the whole suite: real XMPP servers, each started once a session, and the rule for missing ones."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from spade_coreason.storage import AgentRepository, Database
from spade_coreason.testing import AgentTester
from tests.support.databases import new_database_url, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, open_repository
from tests.support.servers import embedded as embedded_server, postgres as postgres_server
from tests.support.servers.kinds import GetServer, kinds_ejabberd_in_release, start_on_demand
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import find_program, hide_programs, missing_programs, note_running, require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

pytest_plugins = ["tests.support.slowest"]

SERVER_FIXTURES = {"get_server", "federation", "own_federation", "postgres", "own_postgres", "go_sendxmpp"}
"""What starts a program that `make servers` installs."""
SERVER_PARAMETERS = {"federation", "prosody", "prosody_large", "prosody_archive", "ejabberd", "postgresql", "postgres"}
"""The values of parameters for which a test asks for one of these fixtures when it runs."""
RAISED_STANZA_BYTES = 4 * 1024 * 1024

# No server of a test has a certificate of an authority that the system trusts. Reading all of those for each connection took
# a third of the CPU time of tests on a server.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "fixtures" / "no_authority.pem")

# jsonschema imports it where it is installed, to check formats, which the package does not. That takes a second.
assert "jsonschema" not in sys.modules
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Debian has servers, nginx for example, where the PATH of a user who is not root does not lead.
os.environ["PATH"] += f"{os.pathsep}/usr/sbin"
hide_programs()

# Nothing that is made when tests are collected is garbage: to look for some takes a fifth of that time.
gc.disable()

# A test that draws is slow on a loaded machine, and is right there too.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A person's patience of ten seconds, the default of the tester, is not that of a loaded machine.
for name in ("ask", "stream", "say", "message", "approve", "deny"):
    defaults = getattr(AgentTester, name).__kwdefaults__
    assert defaults["timeout"] == 10
    defaults["timeout"] = TIMEOUT_S

# A shell makes its background processes ignore SIGINT, and every program started from here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def expected_errors() -> Iterator[ExpectedErrors]:
    """Announce errors that this test makes the platform log: `expected_errors("text of the message")`. Any other fails it."""
    log, errors = logging.getLogger("spade_coreason"), ExpectedErrors()
    log.addHandler(errors)
    yield errors
    log.removeHandler(errors)
    errors.check()


@pytest.fixture(scope="session")
def get_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetServer]:
    """The servers of the whole suite, each started once for its options: `get_server("prosody", archive=True)`."""
    with start_on_demand(tmp_path_factory) as get_server:
        yield get_server


@pytest.fixture(scope="session")
def prosody(get_server: GetServer) -> XmppServer:
    """Prosody with its own default limits, stream management, registration open, no archive."""
    return get_server("prosody")


@pytest.fixture(scope="session")
def prosody_large(get_server: GetServer) -> XmppServer:
    """Prosody that accepts stanzas of 4 MiB."""
    return get_server("prosody", stanza_bytes=RAISED_STANZA_BYTES)


@pytest.fixture(scope="session")
def prosody_archive(get_server: GetServer) -> XmppServer:
    """Prosody that archives every message (XEP-0313) in SQLite."""
    return get_server("prosody", archive=True)


@pytest.fixture(scope="session")
def ejabberd(get_server: GetServer) -> XmppServer:
    """ejabberd with Debian's stanza limit, stream management, registration open, no archive."""
    return get_server("ejabberd")


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[XmppServer]:
    """The embedded server (pyjabber). A test that may stop it starts its own with `start_server`."""
    with embedded_server.embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL without fsync; each `postgres.url()` is a new schema. A test that stops it uses `own_postgres`."""
    require("PostgreSQL", postgres_server.installed())
    with postgres_server.postgres() as server:
        yield server


@pytest.fixture
def get_postgres(request: pytest.FixtureRequest) -> Callable[[], Postgres]:
    """A function that starts `postgres`, for tests of which only some need it."""
    return lambda: request.getfixturevalue("postgres")


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL with fsync that the test may stop."""
    require("PostgreSQL", postgres_server.installed())
    with postgres_server.postgres(durable=True) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database; the test runs on SQLite and on PostgreSQL."""
    return new_database_url(request, tmp_path)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The database at `database_url`, without syncs."""
    database = await open_without_sync(database_url)
    yield database
    await database.close()


@pytest.fixture
async def repository(database: Database) -> AgentRepository:
    """The repository of one agent; the test runs on both databases."""
    return await open_repository(database, AGENT)


@pytest.fixture(params=kinds_ejabberd_in_release)
def real_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server; the test runs on Prosody, and on ejabberd before a release. With the mark `on_both_servers` it always does."""
    return get_server(request.param)


@pytest.fixture(params=["prosody", "embedded"])
def local_server(request: pytest.FixtureRequest) -> XmppServer:
    """A server; the test runs on Prosody and on the embedded server."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, XmppServer)
    return server


@pytest.fixture(params=["prosody", "ejabberd", "embedded"])
def any_server(request: pytest.FixtureRequest) -> XmppServer:
    """A server; the test runs on Prosody, ejabberd and the embedded server."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, XmppServer)
    return server


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[[XmppServer], XmppServer]]:
    """Start servers for this test alone, to stop, kill and restart: `start_server(prosody(tmp_path, resumption_queue=5))`."""
    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture(scope="session")
def go_sendxmpp() -> str:
    """The path of the command-line client go-sendxmpp."""
    program = find_program("go-sendxmpp")
    require("go-sendxmpp", program is not None)
    assert program is not None
    return program


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Share the work of a fresh clone among the processes of xdist: the assertions of all modules are rewritten.

    All would import them in the same order at the same time, so that none finds what another has written. Each begins with
    its share.
    """
    config, number = session.config, os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if number and config.args == config.getini("testpaths"):
        files = sorted(
            path for path in Path(__file__).parent.rglob("test_*.py") if path.parent.name not in config.getini("norecursedirs")
        )
        for path in files[int(number) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
            with suppress(Exception, pytest.skip.Exception):  # the collection itself reports it
                importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the mark `servers` to what starts one by a fixture. Tests that ask `require` have it themselves.

    The tests beside this file begin: the longest are among them, and one that begins last is waited for by all processes.
    """
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = set(item.fixturenames)
            values = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
            asks_later = "request" in fixtures and any(value in SERVER_PARAMETERS for value in values if isinstance(value, str))
            if fixtures & SERVER_FIXTURES or asks_later:
                item.add_marker(pytest.mark.servers)


def pytest_runtest_setup(item: pytest.Item) -> None:
    note_running(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave the thousands of tests themselves out of every garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in missing_programs(terminalreporter.getreports("skipped")):
        terminalreporter.write_line(line, yellow=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one worker more than there are processors: most tests wait more than they compute."""
    return (os.cpu_count() or 1) + 1
