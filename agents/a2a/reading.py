"""Pure conversions: the card of a remote agent to a manifest, and the parts of messages to texts, data and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from spade_coreason import AgentDefinition
from spade_coreason.contracts import AgentCapability, AgentMetadata
from spade_coreason.contracts.manifest import derive_agent_id
from spade_coreason.domain.questions import MAX_CHOICES
from spade_coreason.domain.texts.json_text import dump_json
from spade_coreason.domain.texts.terminal_text import escape_label

MAX_LINE_CHARACTERS = 300
_MAX_SKILLS = 99
_MAX_DESCRIPTION_CHARACTERS = 1000
_MAX_NAME_CHARACTERS = 100
_MAX_CHOICE_CHARACTERS = 200
_MAX_SCHEMA_CHARACTERS = 10_000
_MESSAGE_NAMESPACE = UUID("5a1ea2b0-2f5c-5d0e-9c0b-7f0d5a6e4c11")
_QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_WHOLE = 2**53
"""Whole numbers below it are exact in JSON as A2A has it, where all numbers are floats."""


def clean_line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """Return a text of another program as one line without hidden characters."""
    line = escape_label(" ".join(text[: max_characters * 4].split()))
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"


def derive_message_id(request_id: UUID, number: int) -> str:
    """Return the id of a message to a remote agent. `number` counts those of one request, from 1."""
    return str(uuid5(_MESSAGE_NAMESPACE, f"{request_id} {number}"))


def make_manifest(url: str, name: str, description: str = "", card: Any = None) -> AgentDefinition:
    """Make the manifest of a remote agent. Without its `card`, it can `chat` only; with it, it has a capability for each skill.

    `url` gives it an id that stays the same.
    """
    kind: Any = "streaming" if card is not None and card.capabilities.streaming else "atomic"
    capabilities = {"chat": AgentCapability(name="chat", type=kind, description=description, inputs=_QUERY)}
    for skill in () if card is None else card.skills[:_MAX_SKILLS]:
        skill_name = clean_line(skill.id or skill.name, _MAX_NAME_CHARACTERS)
        if skill_name:
            text = clean_line(_describe_skill(skill), _MAX_DESCRIPTION_CHARACTERS)
            capability = AgentCapability(name=skill_name, type=kind, description=text, inputs=_QUERY)
            capabilities.setdefault(skill_name, capability)
    author = "" if card is None else clean_line(card.provider.organization, _MAX_NAME_CHARACTERS)
    metadata = AgentMetadata(
        id=derive_agent_id(url), version=_read_version("" if card is None else card.version), name=name, author=author or name
    )
    return AgentDefinition(metadata=metadata, capabilities=list(capabilities.values()))


def name_of(card: Any, otherwise: str) -> str:
    """Return the name on a card, or another name if it has none."""
    return clean_line(card.name, _MAX_NAME_CHARACTERS) or otherwise


def describe_card(card: Any) -> str:
    """Return the description on a card, as one line."""
    return clean_line(card.description, _MAX_DESCRIPTION_CHARACTERS)


def _describe_skill(skill: Any) -> str:
    described = ": ".join(text for text in (skill.name, skill.description) if text)
    return f"{described} ({', '.join(skill.tags)})" if skill.tags else described


def _read_version(text: str) -> str:
    """Return a version as a semantic one: `1` and `1.2` are completed, anything else is 0.0.0."""
    numbers = re.fullmatch(r"[vV]?(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?(?:\.(0|[1-9][0-9]{0,8}))?", text)
    return ".".join(number or "0" for number in numbers.groups()) if numbers else "0.0.0"


def make_parts(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the parts of a message from the payload of a request, as ProtoJSON.

    `query` becomes a text, each link in `attachments` a file, and all else data.
    """
    parts: list[dict[str, Any]] = []
    query, attachments = payload.get("query"), payload.get("attachments")
    rest = dict(payload)
    if isinstance(query, str):
        del rest["query"]
        if query:
            parts.append({"text": query})
    if isinstance(attachments, list) and all(
        isinstance(one, Mapping) and isinstance(one.get("url"), str) for one in attachments
    ):
        del rest["attachments"]
        for one in attachments:
            named = {"filename": one.get("name"), "mediaType": one.get("type")}
            parts.append({"url": one["url"]} | {key: text for key, text in named.items() if isinstance(text, str)})
    if rest:
        parts.append({"data": rest})
    return parts or [{"text": ""}]


def join_texts(parts: Iterable[Any]) -> str:
    """Return the texts of parts (ProtoBuf) as one."""
    return "".join(part.text for part in parts if part.WhichOneof("content") == "text")


def read_data(value: Any) -> dict[str, Any]:
    """Return the data of a part as a JSON object. Any other value is its `value`. Whole numbers are integers again."""
    data = _restore_integers(value)
    return data if isinstance(data, dict) else {"value": data}


class QuestionForm(NamedTuple):
    """The form of an answer to a question, a choice or a value that fits a JSON Schema, and the parts that are no text."""

    choices: tuple[str, ...]
    schema: dict[str, Any] | None
    others: list[Any]


def read_form(parts: Iterable[Any]) -> QuestionForm:
    """Read the parts of the message of a question (ProtoBuf).

    A data part is `{"choices": […]}` or `{"schema": {…}}`, as the A2A door of this platform sends them. One that cannot be
    shown to a person is among the `others`.
    """
    from google.protobuf.json_format import MessageToDict  # the agent is imported without the extra, too

    choices: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    others: list[Any] = []
    for part in parts:
        kind = part.WhichOneof("content")
        data = read_data(MessageToDict(part.data)) if kind == "data" else {}
        if data and not choices and schema is None and set(data) <= {"choices", "schema"}:
            if "choices" in data and _are_choices(data["choices"]):
                choices = tuple(data["choices"])
                continue
            if "choices" not in data and _is_short_schema(data["schema"]):
                schema = data["schema"]
                continue
        if kind not in ("text", None):
            others.append(part)
    return QuestionForm(choices, schema, others)


def _are_choices(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_CHOICES
        and all(isinstance(one, str) and one.strip() and clean_line(one, _MAX_CHOICE_CHARACTERS) == one for one in value)
    )


def _is_short_schema(value: Any) -> bool:
    return isinstance(value, dict) and len(dump_json(value)) <= _MAX_SCHEMA_CHARACTERS


def _restore_integers(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _WHOLE else value
    if isinstance(value, dict):
        return {key: _restore_integers(item) for key, item in value.items()}
    return [_restore_integers(item) for item in value] if isinstance(value, list) else value


def make_link(url: str, name: str) -> str | None:
    """Return a link to a file in Markdown; None if the address is no web address."""
    if len(url) > 2048 or not re.fullmatch(r"https?://[^\s<>()\[\]\\`\"\x00-\x20\x7f]+", url):
        return None
    label = re.sub(r"([\\\[\]`*_<>!])", r"\\\1", clean_line(name, _MAX_NAME_CHARACTERS))
    return f"[{label}]({url})" if label else f"<{url}>"
