"""Count the instructions of a turn, independent of other load on the machine: `python -m benchmarks.instructions`.

Times on a shared machine differ by a third from one run to the next. Instructions differ by less than one per cent, and show
small changes. An echo agent with a database on disk runs under callgrind (Debian's package valgrind), from the bytes of its
stream to the bytes of its answers, in all threads. callgrind leaves its profile of C functions for `callgrind_annotate`.

`--check` compares the instructions, the path of a message and the tokens of the package with `figures.toml`, and fails if one
is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from spade_coreason.runtime import tune_gc
from spade_coreason.storage import open_database
from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
from spade_coreason.xmpp.connection.slixmpp_client import XMPPClient
from tests.support.servers.scripted import BIND, Peer, mechanisms, run_script

from .agents import build_hosted
from .figures import FIGURES, find_exceeded, load_figures
from .path import measure_path
from .speed import IN_FLIGHT, THREADS
from .tokens import count_package

AGENT = "echo@localhost"
MESSAGES = 800
WARM_UP = 2000
AT_ONCE = 16
"""Messages that one read of the stream returns."""
BUILD = f"{platform.python_version()}, {platform.python_compiler()}"
"""The build of Python, whose instructions are counted."""
KINDS = ("tokens", "path", "instructions")
_TIMEOUT_S = 280.0
_SLOWDOWN = 50
"""callgrind takes about so many times as long."""
_START_S = 30.0
"""How far the clock is put on after the warm-up. The send queue treats the first seconds with a recipient in another way."""
_UNAVAILABLE = "<service-unavailable xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/>"
_STREAM_MANAGEMENT = "<sm xmlns='urn:xmpp:sm:3'/>"


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with a slow clock, so that no more timers end during a turn than without callgrind."""

    offset_s = 0.0

    def time(self) -> float:
        return monotonic() / _SLOWDOWN + self.offset_s


async def _let_in(peer: Peer) -> None:
    """Let the agent log in and enable stream management, and answer its queries: the roster is empty, all others are errors."""
    await peer.offer(mechanisms("PLAIN"))
    await peer.log_in(f"{BIND}{_STREAM_MANAGEMENT}", f"{AGENT}/agent")
    await peer.expect("<enable ")
    peer.send("<enabled xmlns='urn:xmpp:sm:3'/>")
    received_before = len(peer.received)
    while True:
        asked = await peer.expect(r"<r xmlns|<iq id=\"([^\"]*)\"[^>]*>(<query xmlns=\"jabber:iq:roster\")?")
        if asked[1] is None:
            count = len(re.findall("<(?:iq|presence|message) ", peer.received[received_before:]))
            peer.send(f"<a xmlns='urn:xmpp:sm:3' h='{count}'/>")
        elif asked[2]:
            peer.send(f"<iq type='result' id='{asked[1]}'/>")
        else:
            peer.send(f"<iq type='error' id='{asked[1]}'><error type='cancel'>{_UNAVAILABLE}</error></iq>")


class _Stream(asyncio.Transport):
    """The connection of an agent that is online, with a server and a person at its other end.

    The person sends messages, at most `IN_FLIGHT` at once. The server acknowledges replies when it is asked to.
    """

    def __init__(self, client: XMPPClient) -> None:
        super().__init__()
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._received_count: int = client.stream_management.seq
        self._message_count = 0

    def write(self, data: Any) -> None:
        """Receive bytes of the agent."""
        replies = data.count(b"<message ")
        self._received_count += replies
        for _ in range(replies):
            self._slots.release()
        if b"<r xmlns" in data:
            self._loop.call_soon(self._client.data_received, b"<a xmlns='urn:xmpp:sm:3' h='%d'/>" % self._received_count)

    def pause_reading(self) -> None:
        """Do nothing: what comes in has to wait in the client. It is called on a machine that stands still for a while."""

    def resume_reading(self) -> None:
        """Do nothing, as above."""

    async def talk(self, messages: int) -> None:
        """Send messages, and return when all are answered."""
        for _ in range(messages // AT_ONCE):
            for _ in range(AT_ONCE):
                await self._slots.acquire()
            self._client.data_received("".join([*map(self._message, range(AT_ONCE)), "<r xmlns='urn:xmpp:sm:3'/>"]).encode())
            await asyncio.sleep(0)
        for _ in range(IN_FLIGHT):
            await self._slots.acquire()
        for _ in range(IN_FLIGHT):
            self._slots.release()

    def _message(self, _: int) -> str:
        self._message_count += 1
        return (
            f"<message id='m{self._message_count}' to='{AGENT}' type='chat' from='user@localhost/x' xml:lang='en'>"
            f"<body>message {self._message_count}.</body><thread>thread-{self._message_count % THREADS}</thread></message>"
        )


async def _run(loop: _Loop, directory: str) -> NoReturn:
    """Run the agent under callgrind, which counts only the last `MESSAGES`. Then end the process."""
    database = await open_database(f"sqlite+aiosqlite:///{directory}/platform.db")
    async with run_script(_let_in) as server:
        endpoint = ServerEndpoint("127.0.0.1", server.port, requires_tls=False)
        agent = build_hosted(AGENT, "secret", endpoint, database)
        await agent.start()
        while not agent.is_reachable:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        # `_Stream` does not answer the questions of a profile that is still being published.
        publishing = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__.startswith("AgentProfile.")]  # type: ignore[union-attr]  # typeshed knows fewer coroutines
        await asyncio.gather(*publishing)
        client = agent.connection.client
        client.transport = stream = _Stream(client)
        await stream.talk(WARM_UP)
        loop.offset_s += _START_S
        tune_gc()
        _control("--instr=on")
        await stream.talk(IN_FLIGHT)
        _control("--zero")
        await stream.talk(MESSAGES)
        _control("--dump")
        os._exit(0)  # a stop would wait for the server to acknowledge what `_Stream` has received


def _control(command: str) -> None:
    subprocess.run(["callgrind_control", command, str(os.getpid())], check=True, capture_output=True)


def measure(profile: Path) -> dict[str, float]:
    """Return the instructions a message of each busy thread, by the name of its file beside `profile`."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        subprocess.run(
            [
                *("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
                *(f"--callgrind-out-file={profile}", sys.executable, "-m", "benchmarks.instructions", "--run", directory),
            ],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "1"},
            timeout=_TIMEOUT_S,
        )
    instructions = {}
    for file in sorted(profile.parent.glob(f"{profile.name}.1-*")):
        if (totals := re.search(r"^totals: (\d+)$", file.read_text(), re.M)) is not None and int(totals[1]) > MESSAGES * 1000:
            instructions[file.name] = int(totals[1]) / MESSAGES
    return instructions


def _measure_kind(kind: str) -> dict[str, float]:
    """Return the measurements of one of `KINDS`, with the names of `load_figures`."""
    if kind == "tokens":
        return {"tokens": count_package()}
    if kind == "path":
        return {f"path {name}": count for name, count in asyncio.run(measure_path()).items()}
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is missing: make servers")
    directory = Path(tempfile.mkdtemp(prefix="instructions-"))
    threads = measure(directory / "profile")
    for thread, instructions in threads.items():
        print(f"{instructions:9,.0f} instructions a message: callgrind_annotate {directory / thread}")
    return {f"instructions {BUILD}": sum(threads.values())}


def _check(kinds: list[str], file: Path) -> int:
    """Print the measurements and what they exceed. Return the exit code."""
    figures, problems = load_figures(file), []
    for kind in kinds:
        measured = _measure_kind(kind)
        for name, value in measured.items():
            compared = f"the figure is {figures[name]:,}" if name in figures else "not compared: there is no figure for it"
            print(f"{name}: {value:,.0f} ({compared})")
        problems += find_exceeded(measured, figures)
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description="Count the instructions of a turn.")
    parser.add_argument("--check", nargs="*", choices=KINDS, help="fail if a figure is exceeded; by default any of them")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the file of the figures")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run is not None:
        loop = _Loop()
        loop.run_until_complete(_run(loop, arguments.run))
    if arguments.check is not None:
        return _check(arguments.check or list(KINDS), arguments.figures)
    print(f"{sum(_measure_kind('instructions').values()):9,.0f} in all")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
