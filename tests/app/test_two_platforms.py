"""Two platforms on one server, as docs/how-to/isolation.md has them: one does not notice what an agent does to the other."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spade_coreason import Peers, ResponseHandler, Session
from spade_coreason.contracts import AgentDefinition, AgentRequest
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.docs.pages import DOCS, read_page
from tests.docs.setups import own_prosody
from tests.support.errors import check_errors, errors_in
from tests.support.notify_socket import NotifySocket, open_notify_socket
from tests.support.program import COMMAND, clean_environment, remove_times, run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually
from tests.support.warm import WarmProcess

WATCHDOG_S = 4
MEMORY_BYTES = 1 << 29
"""The limit of the second platform, which needs less than half of it."""
ADDRESS_BYTES = 8 * MEMORY_BYTES
"""The limit of its address space: on a busy machine the first limit may be seen late."""
PACE_S = 0.02
"""The time in which a person reads an answer."""
PEOPLE = ("alice", "bob", "carol")
DESK, REPORTS = "desk@example.org", "reports@example.org"
REPORTS_LOCALLY = "reports@localhost"
WAYS = {
    "block": "watchdog",
    "sleep": "watchdog",
    "allocate": "memory",
    "exit": 9,
    "crash": -signal.SIGSEGV,
}
"""What an agent may do to its platform, and how that ends."""


class FaultyAgent:
    """Both agents. To "order TEXT" it asks the other one.

    A way of `WAYS` is done once: a file says so. To "exit again" it ends the process each time.
    """

    def __init__(self, peers: Peers, other: str) -> None:
        self.manifest = AgentDefinition.simple("faulty")
        self._peers, self._other = peers, other

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        query = str(request.payload["query"])
        word, _, text = query.partition(" ")
        if word == "order":
            query = (await self._peers.ask(self._other, text, timeout=ANSWER_S, separate=True)).text
        elif word in WAYS:
            _fail(word, is_always=text == "again")
        await response.markdown(f"done: {query}")


def _fail(way: str, *, is_always: bool) -> None:
    done = Path(f"done-{way}")
    if done.exists() and not is_always:
        return
    done.touch()
    hoard = []
    while way == "block":
        pass
    while way == "allocate":
        with suppress(MemoryError):  # until it is killed
            hoard.append(b"x" * (1 << 20))
    if way == "sleep":
        time.sleep(ANSWER_S)
    if way == "crash":
        ctypes.string_at(0)
    os._exit(9)


MODULE = """\
from functools import partial
from tests.app.test_two_platforms import FaultyAgent
{name} = partial(FaultyAgent, other="{other}@example.org")
"""


class ServiceManager:
    """What systemd does for the second platform: `Restart`, `WatchdogSec` and `MemoryMax`, in a thread."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.ends: list[str | int] = []
        """How each run ended: what it was killed for, or its exit code."""
        self._directory, self._environment = directory, environment
        self._log = directory / "reports.log"
        self._is_ready, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self, *errors: str) -> Iterator[None]:
        """Run the platform while the block runs. It has to log these errors, and no others."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()
        check_errors(errors_in(remove_times(self._log.read_text())), errors)

    async def wait_until_ready(self) -> None:
        """Wait for the first start."""
        assert await asyncio.to_thread(self._is_ready.wait, TIMEOUT_S), self._log.read_text()

    def _run(self) -> None:
        with open_notify_socket() as notices, self._log.open("wb") as log:
            own = {"NOTIFY_SOCKET": notices.address, "WATCHDOG_USEC": f"{WATCHDOG_S}000000"}
            while not self._is_over.is_set():
                notices.drain()
                process = WarmProcess[bytes](
                    [*COMMAND, "up", "-c", "reports.yaml"],
                    cwd=self._directory,
                    env=clean_environment({**self._environment, **own}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                resource.prlimit(process.pid, resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
                self.ends.append(self._watch(process, notices) or process.wait())

    def _watch(self, process: subprocess.Popen[bytes], notices: NotifySocket) -> str:
        """Return what the process was killed for; empty if it has ended itself."""
        last_beat = float("inf")
        while process.poll() is None:
            try:
                notices.receive(0.01)
                last_beat = time.monotonic()
                self._is_ready.set()
            except TimeoutError:
                pass
            is_late = time.monotonic() - last_beat > WATCHDOG_S
            is_large = _read_memory(process.pid) > MEMORY_BYTES
            if is_late or is_large or self._is_over.is_set():
                process.kill()
                process.wait()
                return "memory" if is_large else "watchdog" if is_late else "over"
        return ""


def _read_memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_files(directory: Path, *titles: str) -> None:
    """Write files of the page."""
    files = {block.title: block.text for block in read_page(DOCS / "how-to/isolation.md").blocks}
    for title in titles:
        (directory / title).write_text(files[title])


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """The server of the page, with accounts for its agents and for people."""
    with own_prosody(tmp_path / "prosody", "echo", "desk", "reports", *PEOPLE) as environment:
        yield environment


@pytest.mark.servers
async def test_an_agent_that_ends_or_blocks_its_platform_is_back_and_the_others_answer_meanwhile(
    accounts: Mapping[str, str], tmp_path: Path
) -> None:
    write_files(tmp_path, "platform.yaml", "reports.yaml")
    for name, other in (("desk", "reports"), ("reports", "desk")):
        (tmp_path / f"{name}.py").write_text(MODULE.format(name=name, other=other))
    environment = {**accounts, "SPADE_COREASON_CONVERSATION__ASSIST_TIMEOUT_S": str(ANSWER_S)}
    host, port, ca_file = (accounts[f"XMPP_{name}"] for name in ("HOST", "PORT", "CA_FILE"))
    server = SimpleNamespace(host=host, port=int(port), ca_file=Path(ca_file))
    alice, bob, carol = (StockClient(f"{name}@example.org", accounts[f"{name.upper()}_PASSWORD"], server) for name in PEOPLE)
    manager = ServiceManager(tmp_path, environment)
    with (
        run_in_background("up", "-c", "platform.yaml", cwd=tmp_path, env=environment, until="Ready"),
        manager.running("crashed the process again"),
    ):
        await manager.wait_until_ready()
        async with alice, bob, carol, asking_all_the_time(bob) as answered:
            reader = Reader(alice)
            for way, end in WAYS.items():
                ended = len(manager.ends)
                alice.send(way, REPORTS, thread=way)
                alice.send("behind", REPORTS, thread=way)
                await eventually((tmp_path / f"done-{way}").exists)
                before = len(answered)
                # The order waits until the agent is back.
                assert await carol.ask(f"order {way}er", DESK, timeout_s=ANSWER_S) == f"done: done: {way}er"
                assert end in manager.ends[ended:]
                assert [await reader.read() for _ in range(2)] == [f"done: {way}", "done: behind"]
                # In the other direction.
                assert await reader.ask(f"order {way}ed", REPORTS) == f"done: done: {way}ed"
                assert len(answered) > before
            alice.send("exit again", REPORTS, thread="again")
            assert (await reader.read()).startswith("This request has crashed me")
            assert await reader.ask("after", REPORTS) == "done: after"


class Reader:
    """A person who leaves out an answer that comes again under its id: the server had not acknowledged it before the end."""

    def __init__(self, client: StockClient) -> None:
        self.client = client
        self._ids: set[str] = set()

    async def read(self) -> str:
        """Return the next new answer."""
        while True:
            message = await self.client.answer(ANSWER_S)
            if message["id"] not in self._ids:
                self._ids.add(message["id"])
                return str(message["body"])

    async def ask(self, text: str, to: str) -> str:
        """Send a message and return the next new answer."""
        self.client.send(text, to)
        return await self.read()


@asynccontextmanager
async def asking_all_the_time(person: StockClient) -> AsyncIterator[list[int]]:
    """A person who asks an agent of the first platform while the block runs. Each answer has to be the right one."""
    answered: list[int] = []

    async def ask() -> None:
        for number in itertools.count():
            answer = await person.ask(f"number {number}", DESK, thread=f"thread-{number // 50}")
            assert answer == f"done: number {number}"
            answered.append(number)
            await asyncio.sleep(PACE_S)

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ask())
        yield answered
        asking.cancel()


@pytest.mark.servers
async def test_the_private_server_of_one_platform_serves_the_other_and_comes_back_with_the_first(tmp_path: Path) -> None:
    write_files(tmp_path, "local.yaml", "local-reports.yaml", "reports.py")
    environment = {"SPADE_COREASON_SERVER__PORT": str(find_free_ports(1)[0])}

    def start_first() -> Any:
        return run_in_background("up", "-c", "local.yaml", cwd=tmp_path, env=environment, until="Ready")

    def ask_reports() -> str:
        own = {"SPADE_COREASON_PASSWORD": json.loads((tmp_path / "data/run.json").read_text())["guest"]["password"]}
        arguments = ("ask", "-c", "local-reports.yaml", REPORTS_LOCALLY, "tea", "--jid", "guest@localhost")
        return run_command(*arguments, cwd=tmp_path, env={**environment, **passwords, **own}).stdout

    with start_first() as first:
        passwords = {"REPORTS_PASSWORD": json.loads((tmp_path / "data/people.json").read_text())[REPORTS_LOCALLY]}
        second_environment = {**environment, **passwords}
        with run_in_background("up", "-c", "local-reports.yaml", cwd=tmp_path, env=second_environment, until="Ready"):
            assert await asyncio.to_thread(ask_reports) == "All about tea.\n"
            first.stop()
            with start_first():
                assert await asyncio.to_thread(ask_reports) == "All about tea.\n"
