"""Count the instructions of a turn, independent of other load on the machine: `python -m benchmarks.instructions`.

Times on a shared machine differ by a third from one run to the next. Instructions differ by one per cent, and show small
changes. An echo agent behind its gateway, with a database on disk and without a network, runs under callgrind (Debian's package
valgrind). callgrind leaves its profile of C functions for `callgrind_annotate`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from spade_coreason import AgentDefinition
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.conversation import Rules
from spade_coreason.runtime import AgentParts, InboundGateway, OutboundMessage, Policy, tune_gc
from spade_coreason.storage import open_database
from spade_coreason.xmpp.codec.evidence import Receiver
from spade_coreason.xmpp.connection.stream_parser import StreamReader
from spade_coreason.xmpp.transport import XmppTransport, receive_stanza

from .speed import IN_FLIGHT, THREADS

AGENT = "echo@localhost"
MESSAGES = 400
WARM_UP = 1000
AT_ONCE = 16
"""Messages that one read of the stream returns."""
_ACKNOWLEDGED_AT_ONCE = 25


class _Client:
    """A client that sends messages, at most `IN_FLIGHT` at once, and acknowledges replies as a server does."""

    def __init__(self) -> None:
        self._reader = StreamReader()
        self._reader.read(b"<stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'>")
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._unacknowledged: list[OutboundMessage] = []
        self._message_count = 0

    def receive(self, messages: Sequence[OutboundMessage]) -> None:
        """Receive messages of the agent."""
        for message in messages:
            self._slots.release()
            self._unacknowledged.append(message)
        if len(self._unacknowledged) >= _ACKNOWLEDGED_AT_ONCE:
            for reply in self._unacknowledged:
                reply.acknowledge()
            self._unacknowledged.clear()

    async def talk(self, gateway: InboundGateway, messages: int) -> None:
        """Send messages, and return when all are answered."""
        receiver = Receiver(AGENT)
        for _ in range(messages // AT_ONCE):
            for _ in range(AT_ONCE):
                await self._slots.acquire()
            for stanza in self._messages():
                receive_stanza(gateway, receiver, stanza)
            await asyncio.sleep(0)
        for _ in range(IN_FLIGHT):
            await self._slots.acquire()
        for _ in range(IN_FLIGHT):
            self._slots.release()

    def _messages(self) -> list[Element]:
        text = ""
        for _ in range(AT_ONCE):
            self._message_count += 1
            text += (
                f"<message to='{AGENT}' from='user@localhost/x' type='chat' id='m{self._message_count}'>"
                f"<body>message {self._message_count}.</body><thread>thread-{self._message_count % THREADS}</thread></message>"
            )
        return self._reader.read(text.encode())


async def _main(messages: int) -> None:
    """Run the agent under callgrind, which counts only the last `messages`."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        database = await open_database(f"sqlite+aiosqlite:///{directory}/platform.db")
        policy = Policy(rules=Rules(max_interactions=0))
        client = _Client()
        transport = XmppTransport(AGENT, client.receive)
        parts = AgentParts(AGENT, database, transport.network)
        runtime = parts.build_runtime(EchoAgent(AgentDefinition.simple("echo")), AccessPolicy(AGENT), policy)
        runner, gateway = runtime.runner, runtime.gateway
        await runner.open()
        await client.talk(gateway, WARM_UP)
        tune_gc()
        _control("--instr=on")
        await client.talk(gateway, IN_FLIGHT)
        _control("--zero")
        await client.talk(gateway, messages)
        _control("--dump")
        await runner.drain(5.0)
        await runner.close()
        await database.close()


def _control(command: str) -> None:
    subprocess.run(["callgrind_control", command, str(os.getpid())], check=True, capture_output=True)


def measure(profile: Path, messages: int = MESSAGES) -> dict[str, float]:
    """Return the instructions a message of each busy thread, by the name of its file beside `profile`."""
    subprocess.run(
        [
            *("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
            *(f"--callgrind-out-file={profile}", sys.executable, "-m", "benchmarks.instructions", str(messages)),
        ],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    instructions = {}
    for file in sorted(profile.parent.glob(f"{profile.name}.1-*")):
        if (totals := re.search(r"^totals: (\d+)$", file.read_text(), re.M)) is not None and int(totals[1]) > messages * 1000:
            instructions[file.name] = int(totals[1]) / messages
    return instructions


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(_main(int(sys.argv[1])))
    elif shutil.which("valgrind") is None:
        sys.exit("valgrind is missing: apt-get install valgrind")
    else:
        directory = Path(tempfile.mkdtemp(prefix="instructions-"))
        for thread, instructions in measure(directory / "profile").items():
            print(f"{instructions:9,.0f} instructions a message: callgrind_annotate {directory / thread}")
