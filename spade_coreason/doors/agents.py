"""The agents of a platform as doors see them: who is behind which door, and what a caller may do there.

Each door (`openai`, `a2a`, `mcp`, `webhooks`) makes requests of what comes by HTTP, and answers of the events of a `DoorReply`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pydantic_core import from_json

from ..contracts import AgentDefinition, AgentRequest, QuestionState
from ..domain.identifiers import derive_request_key, digest_request
from ..domain.jid import local_part
from ..exceptions import ConfigError
from ..operations.definition import Actor, Call, CallerKind
from ..operations.host import OperationHost
from ..operations.initiative.questions import Answered, answer_question
from ..storage import AgentRepository, StoredQuestion
from .backend import AgentBackend, CallerRequests, ListCommands, LocalAgentBackend
from .caller import Caller
from .channel import DoorChannel, DoorReply

_NO_METADATA: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class CallerQuestion:
    """A question that an agent has asked the caller itself."""

    id: str
    code: str
    text: str
    choices: tuple[str, ...]
    schema: Mapping[str, Any] | None
    """The JSON Schema of the answer, or None."""
    request_id: UUID
    """The request that waits for it, or has waited."""
    is_open: bool
    """True while it waits for the answer."""


class DoorAgent:
    """One agent behind doors. What asks the agent raises ConnectionError while it does not run."""

    def __init__(
        self,
        jid: str,
        backend: AgentBackend,
        manifest: AgentDefinition,
        doors: Iterable[str],
        get_host: Callable[[], OperationHost],
    ) -> None:
        self.jid = jid
        """The bare JID of the agent."""
        self.name = local_part(jid)
        self.manifest = manifest
        """The manifest of the agent as it is now."""
        self.doors = frozenset(doors)
        self.backend = backend
        """The agent in the worker that serves it now."""
        self._get_host = get_host

    @property
    def requests(self) -> CallerRequests:
        """The requests of callers to the agent."""
        return self.backend.requests

    @property
    def host(self) -> OperationHost:
        """The platform as operations see it."""
        return self._get_host()

    @property
    def repository(self) -> AgentRepository:
        """The stored data of the agent."""
        return self.host.repository(self.jid)

    async def ask(
        self,
        caller: Caller,
        payload: Mapping[str, Any],
        *,
        request_id: UUID | None = None,
        thread: str | None = None,
        metadata: Mapping[str, Any] = _NO_METADATA,
        waits: bool = False,
    ) -> DoorReply:
        """Ask the agent, and return its reply. It is durable once `reply.stored` is.

        The same `request_id` with the same payload is the same request, for seven days: its reply is repeated. With another
        payload it is refused (code 400). `thread` names the conversation. The agent reads `metadata` as `request.metadata`.
        `waits` is that of `DoorReply`.
        """
        request = AgentRequest(session_id=uuid4(), request_id=request_id or uuid4(), payload=dict(payload))
        return await self.backend.ask(caller, request, thread, metadata, waits=waits)

    async def is_same(self, caller: Caller, request_id: UUID, payload: Mapping[str, Any]) -> bool:
        """Return True unless the request that is stored under an id asks something else."""
        stored = await self.requests.find(caller, request_id)
        return stored is None or stored.digest == digest_request(payload, None)

    async def find_questions(self, caller: Caller, request_id: UUID | None = None) -> list[CallerQuestion]:
        """Return the open questions that the agent has asked the caller itself, of one request or of all, oldest first."""
        if not await self.requests.is_allowed(caller):
            return []
        repository = self.repository.questions
        asked = await repository.load_asked(caller.address)
        if not asked:
            return []
        ids = {}
        for parked in await repository.parked.load_of(caller.address):
            own_id = UUID(from_json(parked.request)["request_id"])
            ids[str(derive_request_key(self.jid, caller.address, own_id))] = own_id
        return [
            _describe_question(each, ids[each.reference])
            for each in asked
            if each.reference in ids and request_id in (None, ids[each.reference])
        ]

    async def find_question(self, caller: Caller, request_id: UUID, question_id: str) -> CallerQuestion | None:
        """Return a question to the caller itself in a request of theirs, open or not; None seven days after its end."""
        found = await self.repository.questions.find(question_id)
        is_theirs = found and found.reference == str(derive_request_key(self.jid, caller.address, request_id))
        return _describe_question(found, request_id) if found and is_theirs else None

    async def find_answers(self, caller: Caller, request_ids: Iterable[UUID]) -> list[tuple[CallerQuestion, Any]]:
        """Return the questions to the caller itself in requests of theirs that were answered, and the answers, oldest first.

        An answer is a text, or the value that fits the schema of its question.
        """
        ids = {str(derive_request_key(self.jid, caller.address, each)): each for each in request_ids}
        asked = await self.repository.questions.load_asked(caller.address, only_open=False, references=list(ids))
        found = [(each, from_json(each.answer)) for each in asked if each.state == QuestionState.ANSWERED and each.answer]
        return [
            (_describe_question(each, ids[each.reference]), answer["text"] if answer["value"] is None else answer["value"])
            for each, answer in found
        ]

    async def waits_for_others(self, caller: Caller, request_id: UUID) -> bool:
        """Return True if a request of the caller waits for another person. A parked one that does not is about to go on."""
        key = derive_request_key(self.jid, caller.address, request_id)
        return await self.repository.questions.waits_for_others(key.bytes, caller.address)

    async def find_last_answered(self, caller: Caller, thread: str) -> str | None:
        """Return the id of the question to the caller itself in a conversation that was answered last; None without one."""
        asked = await self.repository.questions.load_asked(caller.address, only_open=False)
        here = [each for each in asked if each.thread == thread and each.state == QuestionState.ANSWERED]
        return max([(each.changed_at, each.question_id) for each in here], default=(0, None))[1]

    async def answer(self, caller: Caller, question: CallerQuestion, text: str) -> Answered:
        """Answer a question that the agent has asked the caller itself. One who has no access any more was not asked."""
        if not await self.requests.is_allowed(caller):
            return Answered("unknown")
        call = Call(self.host, Actor(CallerKind.PERSON, caller.address, self.jid))
        given = {"agent": self.jid, "person": caller.address, "code": question.code, "text": text}
        try:
            return await answer_question(call, answer_question.read_arguments(given))
        except ConfigError as error:  # it is too long
            return Answered("unsuitable", problem=error.problem)


def _describe_question(stored: StoredQuestion, request_id: UUID) -> CallerQuestion:
    choices, is_open = tuple(stored.choices), stored.is_open
    return CallerQuestion(stored.question_id, stored.code, stored.text, choices, stored.schema, request_id, is_open)


class DoorAgents:
    """The agents of a platform that are behind doors, and the channels of all its agents."""

    def __init__(self) -> None:
        self._channels: dict[str, DoorChannel] = {}
        self._agents: dict[str, DoorAgent] = {}
        self.host: OperationHost | None = None
        """The platform as operations see it, once it is there."""

    def make_channel(self, jid: str) -> DoorChannel:
        """Return the channel of an agent (a bare JID)."""
        if jid not in self._channels:
            self._channels[jid] = DoorChannel(jid)
        return self._channels[jid]

    def add(
        self,
        jid: str,
        manifest: AgentDefinition,
        doors: Iterable[str],
        is_paused: Callable[[], bool] = lambda: False,
        wait_s: float = 0.0,
        list_commands: ListCommands = lambda person: (),
    ) -> None:
        """Add an agent (a bare JID) that is behind these doors. `is_paused` returns True while an operator has paused it.

        Callers wait at most `wait_s` seconds for it to run.
        """
        channel, get_repository = self.make_channel(jid), lambda: self._get_host().repository(jid)
        self.add_backend(jid, LocalAgentBackend(channel, get_repository, is_paused, wait_s, list_commands), manifest, doors)

    def add_backend(self, jid: str, backend: AgentBackend, manifest: AgentDefinition, doors: Iterable[str]) -> None:
        """Add an agent behind doors, or let another worker than before serve it. What goes on with it goes on."""
        if (agent := self._agents.get(jid)) is None:
            self._agents[jid] = DoorAgent(jid, backend, manifest, doors, self._get_host)
        else:
            agent.backend, agent.manifest, agent.doors = backend, manifest, frozenset(doors)

    def remove(self, jid: str, backend: AgentBackend) -> None:
        """Serve an agent here no more. Its backend in another worker takes its place."""
        self._channels.pop(jid, None)
        if (agent := self._agents.get(jid)) is not None:
            agent.backend = backend

    def find_local(self, jid: str) -> LocalAgentBackend | None:
        """Return the backend of an agent that is served here, or None."""
        agent = self._agents.get(jid)
        return agent.backend if agent is not None and isinstance(agent.backend, LocalAgentBackend) else None

    def update(self, jid: str, manifest: AgentDefinition) -> None:
        """Replace the manifest of an agent, if that is behind a door."""
        if (agent := self._agents.get(jid)) is not None:
            agent.manifest = manifest

    def list_agents(self, door: str, caller: Caller | None = None) -> list[DoorAgent]:
        """Return the agents behind a door, those that the key of a caller opens."""
        return [
            agent for agent in self._agents.values() if door in agent.doors and (caller is None or agent.jid in caller.agents)
        ]

    def find(self, door: str, caller: Caller, name: str) -> DoorAgent | None:
        """Return the agent behind a door with a JID, or with the part before the @ if that is one agent's only.

        None if there is none that the key of the caller opens.
        """
        agents = self.list_agents(door, caller)
        found = [agent for agent in agents if agent.jid == name] or [agent for agent in agents if agent.name == name]
        return found[0] if len(found) == 1 else None

    @property
    def open_count(self) -> int:
        """The number of replies that are read at this moment."""
        return sum(len(channel.replies) for channel in self._channels.values())

    def _get_host(self) -> OperationHost:
        if self.host is None:
            raise ConnectionError("the platform is not started yet")
        return self.host
