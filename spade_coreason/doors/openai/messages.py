"""The messages of a client: the bodies of `/v1/chat/completions` and `/v1/responses`, read as one form."""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from mimetypes import guess_extension, guess_type
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic_core import from_json, to_json

from ...domain.texts.file_names import file_name_of, safe_file_name
from ...domain.texts.links import MAX_URL_CHARACTERS, MEDIA_TYPE, is_link
from ...storage import NewFile
from ..errors import HttpError
from ..limits import check_payload

MAX_MESSAGES = 2000
"""The most messages of one request."""
MAX_FILE_BYTES = 8 * 2**20
"""The size of the largest file in a request."""
MAX_FILES = 20
"""The most files in a request, as in a message of a person."""
_THOUGHTS = {'<details type="reasoning"': "</details>", "<think>": "</think>"}
"""The beginnings and ends of thoughts, as clients write them into a message."""
_CONTEXT_END = "</source>\n</context>"
_DEFAULT_TYPE = "application/octet-stream"
_SYSTEM_ROLES = frozenset({"system", "developer"})
_OTHER_ROLES = frozenset({"tool", "function"})
_IGNORED_FOR_IDENTITY = frozenset({"stream", "stream_options", "background"})


@dataclass(slots=True)
class UserMessage:
    """The last message of a user, and what came before it."""

    text: str = ""
    links: list[dict[str, Any]] = field(default_factory=list)
    """The attachments that are elsewhere, as agents read them (docs/how-to/files.md)."""
    files: list[NewFile] = field(default_factory=list)
    """The attachments whose data are in the request."""
    earlier: list[tuple[str, str]] = field(default_factory=list)
    """The role and the text of each earlier message of the user and of the agent."""
    system_prompt: str = ""

    @property
    def history_digest(self) -> bytes | None:
        """The digest of all earlier messages; None if there is no answer among them."""
        return digest_history(self.earlier) if any(role == "assistant" for role, _ in self.earlier) else None

    @property
    def first_digest(self) -> bytes | None:
        """The digest of the first question and answer; None without both."""
        roles = [role for role, _ in self.earlier]
        if "assistant" not in roles:
            return None
        return digest_history(self.earlier[: roles.index("assistant") + 1])


def digest_history(messages: list[tuple[str, str]]) -> bytes:
    """Return the digest of messages, each a role and a text. Spaces, thoughts and documents in a text do not count."""
    return hashlib.sha256(b"history\0" + to_json([[role, _normalize(text)] for role, text in messages])).digest()


def leave_out_documents(text: str) -> str:
    """Return what a person has written. Open WebUI puts documents before it, and sends it later without them."""
    return text.rpartition(_CONTEXT_END)[2].lstrip("\n")


def _normalize(text: str) -> str:
    text = leave_out_documents(text)
    # No regular expression: it would look for an end behind each of a million beginnings.
    for beginning, end in _THOUGHTS.items():
        *parts, rest = text.split(end)
        text = "".join(part.partition(beginning)[0] if beginning in part else part + end for part in parts) + rest
    return " ".join(text.split())


def read_body(data: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raise HttpError."""
    try:
        body = from_json(data, cache_strings=False)
    except ValueError as error:
        raise HttpError(400, "the body is no JSON; send a JSON object") from error
    if not isinstance(body, dict):
        raise HttpError(400, 'the body is no JSON object; send one, such as {"model": …}')
    return body


def digest_body(path: str, body: Mapping[str, Any]) -> bytes:
    """Return the digest of what a body asks. How the answer is sent does not count."""
    asked = {name: body[name] for name in sorted(body) if name not in _IGNORED_FOR_IDENTITY}
    return hashlib.sha256(path.encode() + b"\0" + to_json(asked)).digest()


def read_chat(body: Mapping[str, Any]) -> UserMessage:
    """Read the messages of a chat completion. Raise HttpError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise HttpError(400, "`messages` must be a list with at least one message")
    return _read_messages(messages)


def read_response(body: Mapping[str, Any]) -> UserMessage:
    """Read the input of a response. Raise HttpError."""
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise HttpError(400, "`input` must be a text, or a list with at least one message")
    question = _read_messages(
        [item for item in given if not isinstance(item, dict) or item.get("type", "message") == "message"]
    )
    question.system_prompt += str(body.get("instructions") or "")
    return question


def _read_messages(messages: list[Any]) -> UserMessage:
    if len(messages) > MAX_MESSAGES:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_MESSAGES} messages are read; send fewer")
    question = UserMessage()
    last = None
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role in _SYSTEM_ROLES:
            question.system_prompt += _text_of(message)
        elif role in ("user", "assistant"):
            if last is not None:
                question.earlier.append((last["role"], _text_of(last)))
            last = message
        elif role not in _OTHER_ROLES:
            raise HttpError(400, "each message must be an object with a `role`: user, assistant, system, developer or tool")
    if last is None or last["role"] != "user":
        raise HttpError(400, "the last message must be one of the user: it is the question to the agent")
    _read_question(last, question)
    return question


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _read_question(message: Mapping[str, Any], question: UserMessage) -> None:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else []
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text"):
            texts.append(_require_text(part.get("text"), "text"))
        elif kind in ("image_url", "input_image"):
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else image
            if part.get("file_id"):
                raise HttpError(400, "`file_id` is not supported; send the picture as a data URL")
            _add_url(question, _require_text(url, "image_url"), None, "image")
        elif kind in ("file", "input_file"):
            _add_file(question, part)
        else:
            raise HttpError(400, "a part of the message has a type that is not supported; send text, pictures and files")
    question.text = "\n".join(texts).strip()
    check_payload({"": question.text})
    if len(question.links) + len(question.files) > MAX_FILES:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a message may have {MAX_FILES} files")
    if not question.text and not question.links and not question.files:
        raise HttpError(400, "the last message is empty; write its text as `content`, or as `input` of a response")


def _add_file(question: UserMessage, part: Mapping[str, Any]) -> None:
    # Chat completions have the values in an object `file`, and responses in the part itself.
    file = part["file"] if isinstance(part.get("file"), dict) else part
    name = file.get("filename")
    name = safe_file_name(name) if isinstance(name, str) else None
    if isinstance(url := file.get("file_url"), str):
        _add_url(question, url, name, "file")
    elif isinstance(data := file.get("file_data"), str):
        if not data.startswith("data:"):
            data = f"data:{guess_type(name or '')[0] or _DEFAULT_TYPE};base64,{data}"
        _add_url(question, data, name, "file")
    else:
        raise HttpError(400, "a file needs `file_data`, or in responses `file_url`; `file_id` is not supported")


def _add_url(question: UserMessage, url: str, name: str | None, default_name: str) -> None:
    if url.startswith("data:"):
        question.files.append(_decode_data_url(url, name, default_name))
        return
    if not is_link(url):
        raise HttpError(400, f"a link must be http or https, and have at most {MAX_URL_CHARACTERS:,} characters")
    found = name or file_name_of(url)
    question.links.append({"url": url, "name": found, "type": guess_type(found or "")[0], "size": None, "description": None})


def _decode_data_url(url: str, name: str | None, default_name: str) -> NewFile:
    head, comma, text = url[len("data:") :].partition(",")
    kind, *options = head.split(";")
    kind = kind.strip().lower() or "text/plain"
    if not comma or not MEDIA_TYPE.fullmatch(kind):
        raise HttpError(400, "a data URL has the form data:image/png;base64,…")
    if len(text) > MAX_FILE_BYTES * 3:
        raise _too_large()
    try:
        is_base64 = any(option.strip().lower() == "base64" for option in options)
        data = b64decode("".join(text.split()), validate=True) if is_base64 else unquote_to_bytes(text)
    except (binascii.Error, ValueError) as error:
        raise HttpError(400, "the data of a file are no base64") from error
    if len(data) > MAX_FILE_BYTES:
        raise _too_large()
    if not data:
        raise HttpError(400, "a file is empty")
    return NewFile(name or f"{default_name}{guess_extension(kind) or ''}", kind, data)


def _require_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise HttpError(400, f"`{name}` of a part of the message must be a text")
    return value


def _too_large() -> HttpError:
    text = f"a file may have {MAX_FILE_BYTES // 2**20} MiB; send a smaller one, or a link"
    return HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
