"""Messages of callers: their parts become the payload of a request."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from ...contracts import AgentDefinition
from ...domain.texts.file_names import safe_file_name
from ...domain.texts.links import MAX_URL_CHARACTERS, is_link
from ...storage import NewFile
from ..limits import check_payload

_NAMESPACE = UUID("b9f1c0de-5b0c-4e0f-9c3e-2f1d7a6b8e40")
MAX_ID_CHARACTERS = 256
"""The most characters of the ids that a caller chooses."""
_MAX_FILES = 20
_MAX_FILE_BYTES = 8 * 2**20
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}")
SKILL = "skill"
"""The metadata of a message that names the skill that it asks for."""


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The content of a message: the payload of a request, and the capability, if it names or fits one."""

    payload: dict[str, Any]
    capability: str | None
    files: list[NewFile] = field(default_factory=list)
    """The files in the message itself, which become attachments once they are stored."""

    def add_attachments(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Add stored files to the payload. The query of a message without a text is its links, as in a chat."""
        if stored:
            self.payload["attachments"] = [*self.payload.get("attachments", ()), *stored]
            links = "\n".join(each["url"] for each in self.payload["attachments"])
            self.payload["query"] = self.payload["query"] or links


def derive_task_id(caller: str, agent: str, message_id: str) -> UUID:
    """Derive the id of the task that a message begins, so that the same message begins it once.

    `caller` and `agent` are bare JIDs.
    """
    return uuid5(_NAMESPACE, json.dumps([caller, agent, message_id]))


def check_id(text: str, name: str) -> str:
    """Return an id that a caller chose. Raise InvalidParamsError if it is too long, or has control characters."""
    if len(text) > MAX_ID_CHARACTERS or not text.isprintable():
        raise InvalidParamsError(f"{name} must have at most {MAX_ID_CHARACTERS} printable characters")
    return text


def read_content(message: a2a_pb2.Message, manifest: AgentDefinition) -> MessageContent:
    """Read what a message asks.

    Texts are the `query`, links are `attachments`. One JSON object that fits the schema of a capability is the payload for it;
    any other data are the key `data`. Raise an A2AError if the agent cannot take a part.
    """
    text = "\n\n".join(part.text for part in message.parts if part.HasField("text"))
    data = [read_value(part.data) for part in message.parts if part.HasField("data")]
    attachments = [_read_attachment(part) for part in message.parts if part.HasField("url")]
    files = [_read_file(part) for part in message.parts if part.HasField("raw")]
    if any(part.WhichOneof("content") is None for part in message.parts):
        raise InvalidParamsError("a part of the message has no content; give it text, data, raw or url")
    if len(attachments) + len(files) > _MAX_FILES:
        raise InvalidParamsError(f"the message has more than {_MAX_FILES} files; send fewer")
    payload: dict[str, Any] = {}
    capability = None
    if len(data) == 1 and isinstance(data[0], dict) and not attachments and not files:
        capability = _find_capability(message, manifest, data[0] | ({"query": text} if text else {}))
        if capability is not None:
            payload = data[0] | ({"query": text} if text else {})
    if not payload:
        payload = {"query": text or "\n".join(each["url"] for each in attachments)}
        if data:
            payload["data"] = data[0] if len(data) == 1 else data
        if attachments:
            payload["attachments"] = attachments
        capability = _read_skill(message, manifest, payload)
    check_payload(payload)
    return MessageContent(payload, capability, files)


def _read_skill(message: a2a_pb2.Message, manifest: AgentDefinition, payload: Mapping[str, Any]) -> str | None:
    """Return the skill that a message names. Raise InvalidParamsError if there is none, or the payload does not fit it."""
    if SKILL not in message.metadata:
        return None
    name = message.metadata[SKILL]
    if name not in [capability.name for capability in manifest.capabilities]:
        raise InvalidParamsError("the agent has no skill of this name; its card lists them")
    try:
        manifest.validate_input(name, payload)
    except ValueError as error:
        raise InvalidParamsError(f"the data do not fit the skill: {error}") from error
    return str(name)


def _find_capability(message: a2a_pb2.Message, manifest: AgentDefinition, payload: Mapping[str, Any]) -> str | None:
    """Return the capability that a message names, or the first one whose schema the payload fits."""
    if (named := _read_skill(message, manifest, payload)) is not None:
        return named
    for capability in manifest.capabilities:
        if set(payload) & set(capability.inputs.get("properties", ())):
            try:
                capability.validate_input(payload)
            except ValueError:
                continue
            return capability.name
    return None


def _read_attachment(part: a2a_pb2.Part) -> dict[str, Any]:
    """Return a file as agents get those of chats: its link, with what the sender says of it."""
    if not is_link(part.url):
        raise InvalidParamsError(f"a url must begin with http or https, and have at most {MAX_URL_CHARACTERS} characters")
    return {"url": part.url, "name": part.filename or None, "type": part.media_type or None, "size": None, "description": None}


def _read_file(part: a2a_pb2.Part) -> NewFile:
    if len(part.raw) > _MAX_FILE_BYTES:
        raise InvalidParamsError(f"a file may have {_MAX_FILE_BYTES // 2**20} MiB; send a smaller one, or a part with url")
    media_type = part.media_type if _MEDIA_TYPE.fullmatch(part.media_type) else "application/octet-stream"
    return NewFile((safe_file_name(part.filename) if part.filename else None) or "file", media_type.lower(), part.raw)


def read_value(value: Value) -> Any:
    """Return a JSON value. Protobuf has one kind of number, so whole numbers are integers again.

    Raise InvalidParamsError for a number that JSON does not have.
    """
    match kind := value.WhichOneof("kind"):
        case "struct_value":
            return {key: read_value(each) for key, each in value.struct_value.fields.items()}
        case "list_value":
            return [read_value(each) for each in value.list_value.values]
        case "number_value":
            return _restore_integer(value.number_value)
        case "null_value" | None:
            return None
    return getattr(value, kind)


def _restore_integer(number: float) -> float:
    if not math.isfinite(number):
        raise InvalidParamsError("a number is infinite, or is none; JSON does not have it")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def read_metadata(message: a2a_pb2.Message) -> dict[str, Any]:
    """Return the metadata of a message as JSON. Raise InvalidParamsError for a number that JSON does not have."""
    metadata = {key: read_value(value) for key, value in message.metadata.fields.items()}
    check_payload(metadata)
    return metadata


def make_message(
    ident: str, task_id: str, context_id: str, parts: Sequence[a2a_pb2.Part], *, is_user: bool = False
) -> a2a_pb2.Message:
    """Make a message of the agent, or of the caller."""
    role = a2a_pb2.ROLE_USER if is_user else a2a_pb2.ROLE_AGENT
    return a2a_pb2.Message(message_id=ident, task_id=task_id, context_id=context_id, role=role, parts=parts)


def parts_of(payload: Mapping[str, Any]) -> list[a2a_pb2.Part]:
    """Return the parts of the message that had a payload: the reverse of `read_content`."""
    rest = {key: value for key, value in payload.items() if key not in ("query", "attachments")}
    parts = [a2a_pb2.Part(text=str(payload["query"]))] if payload.get("query") else []
    if rest:
        parts.append(data_part(rest["data"] if list(rest) == ["data"] else rest))
    for each in payload.get("attachments", ()):
        parts.append(a2a_pb2.Part(url=each["url"], filename=each.get("name") or "", media_type=each.get("type") or ""))
    return parts or [a2a_pb2.Part(text="")]


def data_part(value: Any) -> a2a_pb2.Part:
    """Return a part with a JSON value."""
    return a2a_pb2.Part(data=ParseDict(value, Value()), media_type="application/json")
