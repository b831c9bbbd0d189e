"""The progress of a task: the events of a reply change it, and become the updates of the protocol."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from a2a.types import a2a_pb2
from google.protobuf.json_format import ParseDict

from ...domain.texts.links import is_link
from ..agents import CallerQuestion
from ..channel import DoorEvent
from .messages import data_part, make_message

Update: TypeAlias = a2a_pb2.Task | a2a_pb2.TaskStatusUpdateEvent | a2a_pb2.TaskArtifactUpdateEvent

TERMINAL = frozenset(
    {
        a2a_pb2.TASK_STATE_COMPLETED,
        a2a_pb2.TASK_STATE_FAILED,
        a2a_pb2.TASK_STATE_CANCELED,
        a2a_pb2.TASK_STATE_REJECTED,
    }
)
ASKED_ANOTHER = "The agent has asked another person, and waits for the answer."
PAUSED = "An operator has paused the agent. The task is stored, and goes on when the pause ends."
INTERRUPTED = "The platform stops. The task goes on after its next start: subscribe to it again."
_FINAL_STATES = {
    "request.completed": a2a_pb2.TASK_STATE_COMPLETED,
    "request.failed": a2a_pb2.TASK_STATE_FAILED,
    "request.refused": a2a_pb2.TASK_STATE_REJECTED,
    "request.cancelled": a2a_pb2.TASK_STATE_CANCELED,
}
_FACTS = ("code", "recoverable", "incident", "retry_after_s", "usage")


def make_status(
    state: int, task_id: str, context_id: str, parts: Sequence[a2a_pb2.Part] = (), now: datetime | None = None
) -> a2a_pb2.TaskStatus:
    """Make a status, with a message of the agent if there are parts."""
    now = now or datetime.now(UTC)
    status = a2a_pb2.TaskStatus(state=a2a_pb2.TaskState.Name(state))
    status.timestamp.FromDatetime(now.replace(microsecond=now.microsecond // 1000 * 1000))
    if parts:
        status.message.CopyFrom(make_message(f"{task_id}-{int(now.timestamp() * 1e6)}", task_id, context_id, parts))
    return status


def question_parts(question: CallerQuestion) -> list[a2a_pb2.Part]:
    """Return a question as parts of a message: its text, and its choices or its schema as data."""
    form: dict[str, Any] = {}
    if question.choices:
        form["choices"] = list(question.choices)
    if question.schema is not None:
        form["schema"] = dict(question.schema)
    return [a2a_pb2.Part(text=question.text), *([data_part(form)] if form else [])]


class TaskProgress:
    """A task as it is now. `apply` takes the next event of its reply, and returns the updates for those who follow it."""

    def __init__(self, task_id: str, context_id: str, message: a2a_pb2.Message | None, now: datetime | None = None) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.status = make_status(a2a_pb2.TASK_STATE_SUBMITTED, task_id, context_id, now=now)
        self.history = [] if message is None else [message]
        self._artifacts: dict[str, a2a_pb2.Artifact] = {}
        self._pieces: dict[str, list[str]] = {}
        """The texts of the streams so far, by the ids of their artifacts."""
        self._titles: dict[str, str] = {}
        self._facts: dict[str, Any] = {}
        self._error = ""

    @property
    def is_terminal(self) -> bool:
        """True if the task is over."""
        return self.status.state in TERMINAL

    @property
    def is_settled(self) -> bool:
        """True if nothing follows before a person does something."""
        return self.is_terminal or self.status.state == a2a_pb2.TASK_STATE_INPUT_REQUIRED

    @property
    def waits_for_others(self) -> bool:
        """True if the agent waits for the answer of another person than the caller, or for the end of a pause."""
        parts = self.status.message.parts
        return self.status.state == a2a_pb2.TASK_STATE_WORKING and len(parts) == 1 and parts[0].text in (ASKED_ANOTHER, PAUSED)

    def snapshot(self) -> a2a_pb2.Task:
        """Return the task as it is now."""
        task = a2a_pb2.Task(id=self.task_id, context_id=self.context_id, status=self.status, history=self.history)
        for ident, artifact in self._artifacts.items():
            added = task.artifacts.add()
            added.CopyFrom(artifact)
            if ident in self._pieces:
                added.parts[0].text = "".join(self._pieces[ident])
        if self._facts:
            ParseDict(self._facts, task.metadata)
        return task

    def set_status(self, state: int, parts: Sequence[a2a_pb2.Part] = (), metadata: Mapping[str, Any] | None = None) -> Update:
        """Change the status, and return the update."""
        self.status = make_status(state, self.task_id, self.context_id, parts)
        update = a2a_pb2.TaskStatusUpdateEvent(task_id=self.task_id, context_id=self.context_id, status=self.status)
        if metadata:
            ParseDict(dict(metadata), update.metadata)
        return update

    def add_message(self, message: a2a_pb2.Message) -> None:
        """Add a message to the history, after the question that it answers."""
        if self.status.HasField("message"):
            self.history.append(self.status.message)
        self.history.append(message)

    def apply(self, event: DoorEvent) -> list[Update]:
        """Change the task by an event of its reply. Return the updates; none for a task that is over."""
        if self.is_terminal:
            return []
        if event.type in _FINAL_STATES:
            return [self._end(event)]
        if event.type in ("request.parked", "request.interrupted"):
            return []
        updates = []
        is_quiet = event.type == "block.thought"
        if (self.status.state != a2a_pb2.TASK_STATE_WORKING or self.waits_for_others) and not is_quiet:
            updates.append(self.set_status(a2a_pb2.TASK_STATE_WORKING))
        if (update := self._apply_block(event)) is not None:
            updates.append(update)
        return updates

    def _end(self, event: DoorEvent) -> Update:
        self._facts |= {name: event.data[name] for name in _FACTS if event.data.get(name) is not None}
        text = str(event.data.get("message", "")) or self._error
        parts = [a2a_pb2.Part(text=text)] if text else []
        return self.set_status(_FINAL_STATES[event.type], parts, self._facts)

    def _apply_block(self, event: DoorEvent) -> Update | None:
        data = event.data
        match event.type:
            case "block.markdown":
                return self._put(data["id"], [text_or_link(data["content"])])
            case "block.data":
                hint = {"view_hint": data["view_hint"]} if data.get("view_hint") else {}
                return self._put(data["id"], [data_part(data["data"])], data.get("title"), hint)
            case "block.thought":
                facts = {"thought": True, "title": data.get("title"), "status": data.get("status")}
                return self.set_status(a2a_pb2.TASK_STATE_WORKING, [a2a_pb2.Part(text=data["content"])], facts)
            case "block.error":
                self._error = data["user_message"]
            case "stream.start":
                self._titles[data["stream_id"]] = data.get("title") or ""
            case "stream.chunk":
                return self._add_chunk(data["stream_id"], data["chunk"])
            case "stream.end":
                return self._end_stream(data["stream_id"])
            case "stream.abort":
                return self._abort_stream(data["stream_id"], data.get("replacement"), data["reason"])
            case "request.repeated":
                self._artifacts.clear()
                self._pieces.clear()
        return None

    def _put(
        self, ident: str, parts: Sequence[a2a_pb2.Part], name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Update:
        artifact = a2a_pb2.Artifact(artifact_id=ident, name=name or "", parts=parts)
        if metadata:
            ParseDict(dict(metadata), artifact.metadata)
        self._artifacts[ident] = artifact
        self._pieces.pop(ident, None)
        return self._artifact_update(artifact, last_chunk=True)

    def _artifact_update(
        self, artifact: a2a_pb2.Artifact, *, append: bool = False, last_chunk: bool = False
    ) -> a2a_pb2.TaskArtifactUpdateEvent:
        return a2a_pb2.TaskArtifactUpdateEvent(
            task_id=self.task_id, context_id=self.context_id, artifact=artifact, append=append, last_chunk=last_chunk
        )

    def _add_chunk(self, ident: str, text: str) -> Update:
        piece = a2a_pb2.Artifact(artifact_id=ident, name=self._titles.get(ident, ""), parts=[a2a_pb2.Part(text=text)])
        if ident in self._pieces:
            self._pieces[ident].append(text)
            return self._artifact_update(piece, append=True)
        self._pieces[ident] = [text]
        self._artifacts[ident] = piece
        return self._artifact_update(piece)

    def _end_stream(self, ident: str) -> Update | None:
        if ident not in self._pieces:
            return None  # nothing was written
        return self._artifact_update(
            a2a_pb2.Artifact(artifact_id=ident, parts=[a2a_pb2.Part(text="")]), append=True, last_chunk=True
        )

    def _abort_stream(self, ident: str, replacement: str | None, reason: str) -> Update | None:
        if replacement is not None:
            return self._put(ident, [a2a_pb2.Part(text=replacement)], self._titles.get(ident))
        update = self._end_stream(ident)
        if isinstance(update, a2a_pb2.TaskArtifactUpdateEvent):
            ParseDict({"aborted": reason}, update.metadata)
        return update


def text_or_link(text: str) -> a2a_pb2.Part:
    """Return a text as a part: a whole text that is the link to a file is that file."""
    if is_link(text):
        name = PurePosixPath(unquote(urlsplit(text).path)).name
        media_type = mimetypes.guess_type(name)[0] if "." in name else None
        if media_type is not None:
            return a2a_pb2.Part(url=text, filename=name, media_type=media_type)
    return a2a_pb2.Part(text=text)
