"""An agent in a process of its own: it is used like any other agent, and its process is started again when it ends."""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
import pickle
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...contracts import AgentDefinition, AgentRequest, Interaction, Response, Session
from ...domain.texts.translation import LANGUAGE
from ...exceptions import AgentProcessError, ConfigError
from ...memory import TurnSession
from ...operations.status import ProcessStatus
from ..assembly import AgentParts
from ..commands.decorator import mark_command
from ..function_agent import FunctionAgent
from ..initiative.decorator import EveryMark, mark_every
from ..peers.peers import CURRENT_REQUEST
from ..topics.decorator import mark_subscriptions
from ..turns.response import TurnResponse
from ..turns.steps import CURRENT_JOURNAL
from .calls import ChildCalls
from .description import REQUEST_FIELDS, AgentDescription, CommandDescription, Isolation
from .process import AgentProcess, log_levels
from .turns import OpenTurn

log = logging.getLogger(__name__)


def load_isolated_agent(
    spec: str,
    *,
    place: str,
    project: Path,
    parts: AgentParts,
    isolation: Isolation,
    options: Mapping[str, object],
    manifest: Path | None = None,
) -> IsolatedAgent:
    """Start a process, and load the agent `spec` (`module:attribute`) there, as `load_agent` does here.

    It blocks until the agent is made, as an import here would. Call `aclose` of the agent at the end. ConfigError as for
    `load_agent`, and if the process ends or takes too long. Call it in the running event loop.
    """
    supervisor = Supervisor(parts, isolation, _build_message(spec, place, project, parts, isolation, options, manifest))
    try:
        description = supervisor.start()
    except AgentProcessError as error:
        problem = f"{spec} cannot be created: its process {error.problem}; correct its code"
        raise ConfigError(f"{place}.agent" if place else "", problem) from error
    return _make_class(description)(supervisor, description.manifest)


def spec_of(agent: object) -> str:
    """Return the `module:attribute` under which another process finds a class or function. ConfigError if there is none."""
    found = inspect.unwrap(agent.function) if isinstance(agent, FunctionAgent) else agent
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
    if module in (None, "__main__") or not name or "<" in name:
        problem = "isolation: process needs a class or a function at the top level of a module; define it there"
        raise ConfigError("isolation", problem)
    return f"{module}:{name}"


def _build_message(
    spec: str,
    place: str,
    project: Path,
    parts: AgentParts,
    isolation: Isolation,
    options: Mapping[str, object],
    manifest: Path | None,
) -> dict[str, Any]:
    """Return all that the process needs to build the agent. It may hold secrets, and so crosses over the socket only."""
    try:
        pickled = pickle.dumps(dict(options))
    except Exception as error:  # an option may be any object
        key = f"{place}.options" if place else "options"
        raise ConfigError(key, f"one cannot be sent to the process of the agent ({error}); give texts and numbers") from error
    memory = parts.memory() if parts.memory is not None else None
    return {
        "spec": spec,
        "place": place,
        "project": str(project),
        "path": sys.path,
        "options": base64.b64encode(pickled).decode(),
        "manifest": None if manifest is None else str(manifest),
        "levels": log_levels(),
        "memory_mb": isolation.memory_mb,
        "ca_file": str(parts.files.ca_file) if parts.files.ca_file is not None else None,
        "own_urls": list(parts.files.own_urls),
        "topic_broker": parts.peer_options.topic_broker,
        "memory": None
        if memory is None
        else {
            "directory": str(memory.path.parent) if memory.has_file else None,
            "limits": asdict(memory.limits),
            "durability": memory.durability,
        },
    }


class Supervisor:
    """The supervisor of an agent's process: it starts it, and again with back-off when it has ended."""

    def __init__(self, parts: AgentParts, isolation: Isolation, build: dict[str, Any]) -> None:
        self._jid = parts.jid
        self._isolation = isolation
        self._calls = ChildCalls(parts)
        self._build = {**build, "files": str(self._calls.directory)}
        self._process: AgentProcess | None = None
        self._ready = asyncio.Event()
        self._was_ready = False
        self._ready_at = 0.0
        self._restart: asyncio.Task[None] | None = None
        self._failures = 0
        self._restarts = 0
        self._last_end: str | None = None
        self._is_closed = False
        self.is_started = False
        """True if `startup()` of the agent has run. It runs again in each new process."""

    def start(self) -> AgentDescription:
        """Start the first process and wait for its agent. ConfigError or AgentProcessError if there is none."""
        process = self._launch()
        try:
            description = process.build()
        except BaseException:
            self._is_closed = True
            self._calls.close()
            raise
        self._set_ready(process)
        return description

    @property
    def is_ready(self) -> bool:
        """True if the process takes turns."""
        return self._ready.is_set()

    @property
    def status(self) -> ProcessStatus:
        """The status of the process now."""
        pid = self._process.pid if self._process is not None and self._ready.is_set() else None
        return ProcessStatus(pid, self._restarts, self._last_end)

    async def run(self, turn: OpenTurn, message: list[Any]) -> object:
        """Run a turn in the process. While it is being started again, wait for it. AgentProcessError if it ends."""
        while not self._ready.is_set():
            await self._ready.wait()
        if self._process is None:
            raise AgentProcessError(self._jid, "was stopped")
        return await self._process.run(turn, message)

    async def aclose(self) -> None:
        """End the process."""
        self._is_closed = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        self._ready.set()
        self._calls.close()

    def _launch(self) -> AgentProcess:
        self._process = AgentProcess(self._jid, self._isolation, self._calls, self._build, self._on_ending, self._on_ended)
        return self._process

    def _set_ready(self, process: AgentProcess) -> None:
        self._ready_at = asyncio.get_running_loop().time()
        self._process = process
        self._ready.set()

    def _on_ending(self) -> None:
        """Let new turns wait."""
        self._was_ready = self._ready.is_set()
        self._ready.clear()

    def _on_ended(self, cause: str) -> None:
        """Plan the next process."""
        self._last_end = cause
        if self._is_closed or not self._was_ready:  # a restart that has failed goes on by itself
            return
        timings = self._isolation.timings
        if asyncio.get_running_loop().time() - self._ready_at >= timings.healthy_s:
            self._failures = 0
        self._restart = asyncio.create_task(self._restart_until_ready(cause))

    async def _restart_until_ready(self, cause: str) -> None:
        timings = self._isolation.timings
        while True:
            delay_s = min(timings.max_delay_s, timings.first_delay_s * 2 ** min(self._failures, 20))
            self._failures += 1
            log.error("%s: its process %s; restarting it in %g s", self._jid, cause, delay_s)
            await asyncio.sleep(delay_s)
            self._restarts += 1
            try:
                process = self._launch()
                await process.wait_until_built()
                if self.is_started:
                    await process.run(OpenTurn(), ["call", 0, "startup", []])
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the code of the agent may raise anything
                cause = error.problem if isinstance(error, AgentProcessError) else f"does not start: {_describe(error)}"
                if self._process is not None:
                    self._process.end(cause)
                continue
            self._set_ready(process)
            log.info("%s: its process is running again", self._jid)
            return


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigError) else f"startup() raises {type(error).__name__}: {error}"


class IsolatedAgent:
    """An agent whose code runs in a process of its own. A subclass for each has its optional methods and its commands."""

    def __init__(self, supervisor: Supervisor, manifest: AgentDefinition) -> None:
        self._supervisor = supervisor
        self._manifest = manifest

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest, as it was when the agent was made."""
        return self._manifest

    @property
    def process_status(self) -> ProcessStatus:
        """The status of its process."""
        return self._supervisor.status

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer a request in the process. Raise AgentProcessError if the process ends before the turn."""
        returned = await self._run_turn("", {}, request, session, response)
        # The log names the type of what was returned, so that it needs a value of that type's name.
        return None if returned is None else type(str(returned)[:100], (), {})()  # type: ignore[return-value]  # it should be None

    async def aclose(self) -> None:
        """End the process. Call it after the last turn."""
        await self._supervisor.aclose()

    async def _run_turn(
        self, command: str, values: Mapping[str, Any], request: AgentRequest | None, session: Session, response: Response | None
    ) -> object:
        """Run `assist`, or a command of the agent. The process gets what it needs of the request and the session at once."""
        # An interceptor may have wrapped them. Then the agent's code waits for each call, because it may raise.
        is_plain = type(session) is TurnSession and (response is None or type(response) is TurnResponse)
        identity = session.identity
        message = [
            "turn",
            0,
            command,
            values,
            None if request is None else [request.__dict__[name] for name in REQUEST_FIELDS],
            [session.session_id, identity.id, identity.name, identity.role, getattr(session, "summary", ""), LANGUAGE.get()],
            session.variables() if is_plain and isinstance(session, TurnSession) else None,
        ]
        return await self._supervisor.run(OpenTurn(request, session, response, CURRENT_JOURNAL.get()), message)

    async def _call(self, name: str, *args: object) -> None:
        await self._supervisor.run(OpenTurn(), ["call", 0, name, args])


async def _startup(self: IsolatedAgent) -> None:
    await self._call("startup")
    self._supervisor.is_started = True


async def _shutdown(self: IsolatedAgent) -> None:
    self._supervisor.is_started = False
    if self._supervisor.is_ready:
        await self._call("shutdown")


async def _feedback(self: IsolatedAgent, interaction: Interaction, reactions: tuple[str, ...]) -> None:
    await self._call("feedback", interaction.model_dump(mode="json", by_alias=True), reactions)


async def _on_conversation_end(self: IsolatedAgent, conversation_id: str, state: str) -> None:
    await self._call("on_conversation_end", conversation_id, state)


_METHODS = {
    "startup": _startup,
    "shutdown": _shutdown,
    "feedback": _feedback,
    "on_conversation_end": _on_conversation_end,
}


def _make_class(description: AgentDescription) -> type[IsolatedAgent]:
    """Make a subclass with the methods that the agent has. The platform finds them by their names and marks."""
    methods: dict[str, Any] = {name: _METHODS[name] for name in description.hooks if name in _METHODS}
    for number, command in enumerate(description.commands):
        methods[f"command_{number}"] = _make_command(command)
    if description.patterns:
        methods["receive_item"] = _make_item_handler(description.patterns)
    for number, mark in enumerate(description.every):
        methods[f"every_{number}"] = _make_every_handler(mark)
    return type(description.type_name, (IsolatedAgent,), methods)


def _make_command(command: CommandDescription) -> Any:
    async def run(self: IsolatedAgent, session: Session, **values: Any) -> str | None:
        text = await self._run_turn(command.name, values, CURRENT_REQUEST.get(), session, None)
        return None if text is None else str(text)

    mark_command(run, command.name, command.description, command.fields, command.audience)
    return run


def _make_item_handler(patterns: tuple[str, ...]) -> Any:
    async def receive_item(self: IsolatedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await self.assist(request, session, response)  # the process finds the handler

    mark_subscriptions(receive_item, patterns)
    return receive_item


def _make_every_handler(mark: EveryMark) -> Any:
    async def run(self: IsolatedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await self.assist(request, session, response)  # the process finds the method

    mark_every(run, mark)
    return run
