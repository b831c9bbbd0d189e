"""The process of an agent: `python -m spade_coreason.runtime.isolation.child DESCRIPTOR JID`, which the platform starts.

DESCRIPTOR is the socket to the platform; JID is for people who look at the list of processes. When the platform ends, in any
way, this process ends too.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import inspect
import io
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...concurrency import run_until_done
from ...contracts import Identity, Interaction
from ...domain.environment.library_logs import is_worth_showing
from ...domain.texts.translation import LANGUAGE
from ...exceptions import ConfigError, CoReasonError
from ...memory import CURRENT_DEFERRED_SYNCS, AgentInteractionMemory, DeferredSyncs, MemoryLimits
from ..agent_factory import Injectables, load_agent
from ..agent_lifecycle import call_hook
from ..commands.decorator import commands_of
from ..handlers import route_to_handlers
from ..initiative.people import People
from ..peers.peers import CURRENT_REQUEST
from ..turns.steps import CURRENT_JOURNAL
from ..upkeep.garbage_collection import tune_gc
from .description import AgentDescription
from .errors import dump_error
from .frames import FrameConnection, Message, ProtocolError
from .remote import (
    ForwardedEntries,
    ForwardedKnowledge,
    ForwardedNotifier,
    ForwardedPeers,
    ForwardedResponse,
    ForwardedSession,
    ForwardedTurn,
    ForwardedUsage,
    PlatformConnection,
    build_files,
    read_request,
)

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"
_SPARE_BYTES = 1 << 30
_EXIT_S = 10.0
_LOG_RECORDS = 500
_LOG_INTERVAL_S = 5.0
_MAX_LOG_TEXT = 16_000


def main(arguments: list[str]) -> int:
    """Serve the platform until it closes the connection."""
    _die_with_parent()
    sock = socket.socket(fileno=int(arguments[0]))
    sock.set_inheritable(False)  # a program that the agent starts must not hold the connection open
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        run_until_done(loop, loop.create_task(_Child(sock).serve(arguments[1])))
    return 0


def _die_with_parent() -> None:
    """Let this process be killed when the platform ends (Linux). Elsewhere the end of the connection ends it."""
    parent_pid = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
    with suppress(OSError):  # if the machine runs out of memory, this process goes before the platform
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _limit_memory(memory_mb: int | None) -> None:
    """Limit the memory far above `memory_mb`, for an allocation so fast that the platform cannot see it come."""
    if memory_mb is not None:
        limit = 2 * memory_mb * 1_048_576 + _SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class _LogForwarder(logging.Handler):
    """Send log records of an agent to the platform, at most 500 in 5 s. The rest is counted."""

    def __init__(self, jid: str, send: Callable[[Message], int], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._jid = jid
        self._send = send
        self._loop = loop
        self._thread = threading.get_ident()
        self._interval = 0
        self._sent = self._dropped = 0
        self.setFormatter(logging.Formatter("%(message)s"))
        self.addFilter(is_worth_showing)

    def emit(self, record: logging.LogRecord) -> None:
        interval = int(time.monotonic() / _LOG_INTERVAL_S)
        if interval != self._interval:
            self._interval, self._sent = interval, 0
        if self._sent >= _LOG_RECORDS:
            self._dropped += 1
            if self._dropped == 1:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._loop.call_later, _LOG_INTERVAL_S, self._note_dropped)
            return
        self._sent += 1
        text = self.format(record)
        if len(text) > _MAX_LOG_TEXT:
            text = f"{text[: _MAX_LOG_TEXT // 2]} […] {text[-_MAX_LOG_TEXT // 2 :]}"
        message = ["log", record.name, record.levelno, text]
        if threading.get_ident() == self._thread:
            self._send(message)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._send, message)

    def _note_dropped(self) -> None:
        count, self._dropped = self._dropped, 0
        records = f"{count:,} log record{' is' if count == 1 else 's are'}"
        limit = f"{_LOG_RECORDS} in {_LOG_INTERVAL_S:g} s are"
        self._send(["log", "spade_coreason.agent", logging.WARNING, f"{self._jid}: {records} not shown; at most {limit}"])


class _Child:
    """The agent and its turns in this process."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._agent: Any = None
        self._routed_agent: Any = None
        self._commands: dict[str, Any] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turns: dict[int, ForwardedTurn] = {}

    async def serve(self, jid: str) -> None:
        self._closed = asyncio.Event()
        self._frames = FrameConnection(self._socket, self._receive, self._on_closed, None)
        self._connection = PlatformConnection(self._frames.send_encoded)
        self._handlers: dict[str, Callable[..., None]] = {
            "build": lambda build: self._build(jid, build),
            "turn": self._on_turn,
            "call": self._on_call,
            "cancel": self._on_cancel,
            "acknowledged": self._on_acknowledged,
            "answer": self._connection.on_answer,
            "event": self._connection.on_event,
            "ping": self._on_ping,
        }
        await self._closed.wait()

    def _receive(self, message: Message, size: int) -> None:
        self._handlers[message[0]](*message[1:])

    def _on_closed(self, error: ProtocolError | None) -> None:
        # What does not end, such as a thread, must not outlive the platform.
        exit_timer = threading.Timer(_EXIT_S, os._exit, (1,))
        exit_timer.daemon = True
        exit_timer.start()
        self._closed.set()

    # Building

    def _build(self, jid: str, build: dict[str, Any]) -> None:
        _limit_memory(build["memory_mb"])
        sys.path[:] = build["path"]
        logging.getLogger().addHandler(_LogForwarder(jid, self._frames.send, asyncio.get_running_loop()))
        logging.captureWarnings(True)
        self._set_levels(build["levels"])
        try:
            self._agent = load_agent(
                build["spec"],
                place=build["place"],
                project=Path(build["project"]),
                injectables=self._make_injectables(jid, build),
                options=pickle.loads(base64.b64decode(build["options"])),  # from the platform, which is trusted
            )
            description = AgentDescription.of(self._agent).dump()
        except BaseException as error:  # noqa: BLE001 - the platform reports it
            if not isinstance(error, CoReasonError):  # an option that cannot be read, or sys.exit() in the constructor
                place = f"{build['place']}.agent" if build["place"] else ""
                error = ConfigError(
                    place, f"{build['spec']} cannot be created: {type(error).__name__}: {error}; correct its code"
                )
            self._frames.send(["failed", error.place, dump_error(error)])
            self._frames.flush()
            return
        tune_gc()
        self._commands = {command.name: command for command in commands_of(self._agent)}
        self._routed_agent = route_to_handlers(self._agent)
        self._frames.send(["built", description])
        self._frames.flush()

    def _make_injectables(self, jid: str, build: dict[str, Any]) -> Injectables:
        connection, memory = self._connection, build["memory"]

        def open_memory() -> AgentInteractionMemory:
            if memory["directory"] is None:
                store = ForwardedEntries(connection, self._frames)
                return AgentInteractionMemory(jid, limits=MemoryLimits(**memory["limits"]), store=store)
            # The same files as those of the platform: threads and processes may share them.
            return AgentInteractionMemory(
                jid, memory["directory"], limits=MemoryLimits(**memory["limits"]), durability=memory["durability"]
            )

        return Injectables(
            manifest_file=Path(build["manifest"]) if build["manifest"] else None,
            peers=lambda: ForwardedPeers(jid, connection, build["topic_broker"]),
            people=lambda: People(jid, lambda: ForwardedNotifier(connection)),
            memory=open_memory if memory is not None else None,
            knowledge=lambda: ForwardedKnowledge(connection),
            files=lambda: build_files(connection, Path(build["files"]), build["ca_file"], build["own_urls"]),
            usage=lambda: ForwardedUsage(connection),
        )

    # Turns

    def _on_turn(
        self,
        turn_id: int,
        command: str,
        values: dict[str, Any],
        request_values: list[Any] | None,
        session_values: list[Any],
        variables: dict[str, dict[str, str]] | None,
    ) -> None:
        turn = self._turns[turn_id] = ForwardedTurn(self._connection, turn_id, waits=variables is None)
        session_id, identity, name, role, summary, language = session_values
        session = ForwardedSession(turn, session_id, Identity(id=identity, name=name, role=role), summary, variables)
        request = None if request_values is None else read_request(request_values)

        async def work() -> object:
            CURRENT_REQUEST.set(request)
            CURRENT_JOURNAL.set(session)
            LANGUAGE.set(language)
            if command:
                text = await self._commands[command].run(session, **values)
                return None if text is None else str(text)
            returned: object = await self._routed_agent.assist(request, session, ForwardedResponse(turn))
            return None if returned is None else type(returned).__name__

        def close() -> None:
            turn.is_closed = True
            session.changes.close()
            del self._turns[turn_id]

        self._start(turn_id, work, close)

    def _on_call(self, turn_id: int, name: str, args: list[Any]) -> None:
        method = getattr(self._agent, name)

        async def work() -> None:
            if name in ("startup", "shutdown"):
                await call_hook(method)
                return
            given = (Interaction.model_validate(args[0]), tuple(args[1])) if name == "feedback" else args
            result = method(*given)
            if inspect.isawaitable(result):
                await result

        self._start(turn_id, work, lambda: None)

    def _start(self, turn_id: int, work: Callable[[], Any], close: Callable[[], None]) -> None:
        self._tasks[turn_id] = asyncio.create_task(self._run(turn_id, work, close))

    async def _run(self, turn_id: int, work: Callable[[], Any], close: Callable[[], None]) -> None:
        """Run a turn to its end, and tell the platform. As there, nothing that it raises goes further."""
        syncs = DeferredSyncs()
        CURRENT_DEFERRED_SYNCS.set(syncs)
        error: BaseException | None = None
        value: object = None
        try:
            value = await work()
        except BaseException as raised:  # noqa: BLE001 - also sys.exit(), which would end the process
            error = raised
        syncs.close()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # a cancellation that is not delivered yet
            while task.uncancel():
                pass
        try:
            if syncs.memories:
                await syncs.run()
        except Exception as raised:  # noqa: BLE001 - the platform reports it
            error = error or raised
        close()
        del self._tasks[turn_id]
        # A reference to the frames of the turn would keep them until the next garbage collection.
        dumped, error = None if error is None else dump_error(error), None
        self._frames.send(["end", turn_id, dumped, value])

    def _on_cancel(self, turn_id: int) -> None:
        if (task := self._tasks.get(turn_id)) is not None:
            # Not at once: a task that is cancelled before it has begun never runs, and would not tell its end.
            asyncio.get_running_loop().call_soon(task.cancel)

    def _on_acknowledged(self, turn_id: int, size: int) -> None:
        if (turn := self._turns.get(turn_id)) is not None:
            turn.on_acknowledged(size)

    def _on_ping(self, levels: dict[str, int]) -> None:
        self._set_levels(levels)
        self._frames.send(["pong"])

    def _set_levels(self, levels: dict[str, int]) -> None:
        for name, level in levels.items():
            logger = logging.getLogger(name)
            if logger.level != level:
                logger.setLevel(level)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
