"""The response of a turn, as its agent sees it: each call becomes an event of the turn's output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from ...contracts import (
    AgentRequest,
    AuditEntry,
    CloudEvent,
    DataBlock,
    ErrorCode,
    GraphEventBase,
    PersonAnswer,
    UserErrorBlock,
)
from ...contracts.blocks import STEP_TITLE
from ...domain.texts.approval_mark import quote_forgeries
from ...domain.texts.text import replace_lone_surrogates
from ..replies.output import TurnOutput, TurnStream

if TYPE_CHECKING:
    from ...domain.messages import InboundRequest
    from ...storage import AgentRepository
    from ..questions.turn_questions import TurnQuestions

_MAX_CHOICES = 20

_Status: TypeAlias = Literal["IN_PROGRESS", "COMPLETE"]
_STATUSES = get_args(_Status)
_ViewHint: TypeAlias = Literal["TABLE", "JSON", "LIST", "KEY_VALUE"]

agent_log = logging.getLogger("spade_coreason.agent")


class TurnResponse:
    """The `Response` of one turn. Each call after the turn raises `RuntimeError`.

    The audit trail tells of the person behind `incoming`, which `request` is made of.
    """

    __slots__ = ("_incoming", "_open_questions", "_output", "_repository", "_request")

    def __init__(
        self,
        output: TurnOutput,
        request: AgentRequest,
        incoming: InboundRequest,
        repository: AgentRepository,
        open_questions: Callable[[], TurnQuestions],
    ) -> None:
        self._open_questions = open_questions
        self._output = output
        self._request = request
        self._incoming = incoming
        self._repository = repository

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        """Emit a thinking block. `status` is `IN_PROGRESS` or `COMPLETE`; any other is a `ValueError`."""
        self._emit_thought(content, status)

    async def step(self, content: str) -> None:
        """Emit a thinking block for all senders: a short line that names what is used at the moment, such as a tool.

        Unlike other thoughts, people see it by default. It is not shown in rooms, and not to people who turned thoughts off.
        """
        self._emit_thought(content, "IN_PROGRESS", STEP_TITLE)

    async def markdown(self, content: str) -> None:
        """Emit a markdown block. `TypeError` if `content` is no text.

        A person gets a block that is too long for a chat as a file, if the server stores files.
        """
        _check_text(content)
        await self._output.emit_text(content)

    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Emit a question as a markdown block, with choices: as buttons in clients that support them (XEP-0439).

        The chosen text, or any other, arrives as the next request. `ValueError` for no choice, more than 20, or an empty one.
        """
        _check_choices(choices)
        content = quote_forgeries("\n".join([question, "", *(f"- {choice}" for choice in choices)]))
        self._output.emit_question(content, tuple((choice, quote_forgeries(choice)) for choice in choices))

    async def ask_person(
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        to: str | None = None,
        timeout: timedelta = timedelta(days=7),
    ) -> PersonAnswer:
        """Ask a person, and return their answer. Until then this run of `assist` ends."""
        return await self._open_questions().ask_person(question, choices, schema, to, timeout)

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None:
        """Emit a data block. A value that is no JSON is a `ValueError` or `TypeError`, and nothing is sent."""
        block_id = self._output.next_part_id()
        await self._output.emit_data(DataBlock(id=block_id, data=data, title=title, view_hint=cast(_ViewHint, view_hint)))

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        """Emit an error of the whole request. Only `message` is sent, and the `ErrorCode` in `details["code"]` if there is one.

        Other details do not leave the process.
        """
        block_id, code = self._output.next_part_id(), (details or {}).get("code")
        self._output.emit_error(
            UserErrorBlock(
                id=block_id,
                user_message=message,
                technical_details=details,
                recoverable=recoverable,
                code=int(code) if isinstance(code, ErrorCode) else None,
            )
        )

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> TurnStream:
        """Open a stream: a text that is sent in pieces."""
        return self._output.open_stream(title)

    async def emit(self, event: CloudEvent[Any] | GraphEventBase) -> None:
        """Record an internal event in the `Interaction`. It is not sent."""
        self._output.record(event.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Write a line to the log `spade_coreason.agent`, and record it in the `Interaction` as a `CloudEvent`."""
        number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        agent_log.log(number, "%s: %s", self._repository.agent, message)
        data = {"level": level, "message": message, "metadata": metadata or {}}
        await self.emit(CloudEvent(type="ai.coreason.log", source=f"xmpp:{self._repository.agent}", data=data))

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None:
        """Add an entry to the audit trail of the agent and to the `Interaction`. It is durable in the trail on return.

        `StoreError` if the entry cannot be stored.
        """
        self._output.sender.require_open()
        entry = AuditEntry(
            request_id=self._request.request_id,
            root_request_id=self._request.root_request_id,
            actor=replace_lone_surrogates(actor),
            action=replace_lone_surrogates(action),
            resource=replace_lone_surrogates(resource),
            outcome="success" if success else "failure",
        )
        person = self._incoming.stored_root or self._incoming.owner
        sealed = await self._repository.audit_trail.append(entry, person)
        await self.emit(CloudEvent(type="ai.coreason.audit", source=f"xmpp:{self._repository.agent}", data=sealed.dump()))

    def _emit_thought(self, content: str, status: str, title: str | None = None) -> None:
        if self._output.sender.is_closed:
            self._output.sender.require_open()
        _check_thought(content, status)
        encoder = self._output.sender.encoder
        if encoder.shows_thoughts or (title == STEP_TITLE and encoder.shows_steps):
            self._output.emit_thought(title=title, content=content, status=status)


def _check_text(content: object) -> None:
    """Raise TypeError unless a block of Markdown is text."""
    if not isinstance(content, str):
        raise TypeError(f"an answer is text, not {type(content).__name__}")


def _check_choices(choices: Sequence[str]) -> None:
    """Raise ValueError for no choice, more than 20, or an empty one."""
    if not 0 < len(choices) <= _MAX_CHOICES or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ValueError(f"choices are 1 to {_MAX_CHOICES} texts, not {choices!r}")


def _check_thought(content: object, status: str) -> None:
    """Raise TypeError unless a thought is text, and ValueError for an unknown status."""
    if not isinstance(content, str):
        raise TypeError(f"a thought is text, not {type(content).__name__}")
    if status not in _STATUSES:
        raise ValueError(f"the status of a thought is {' or '.join(_STATUSES)}, not {status!r}")
