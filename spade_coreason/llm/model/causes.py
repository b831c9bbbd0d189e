"""The causes of a refused request, read from the errors of many servers, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...domain.texts.translation import N_

_READ_CHARACTERS = 4000
_STATUS = re.compile(r"[45][0-9]{2}")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]-]{0,63}")
TOO_LARGE = 413
"""The HTTP status of a request that has too many bytes, or too many tokens."""
_NO_LENGTH_STATUSES = {401, 402, 403, 404, 408, 409, 425, 429}
_REQUEST_STATUSES = {400, 404, 422}


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause. `problem` is for the sender; without one, the text of the HTTP status is used. `remedy` is for the log."""

    problem: str
    remedy: str
    is_too_long: bool = False


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """An error of a server: an HTTP status with a body, or an error within an answer, whose `status` may be unknown.

    Its message may quote the conversation, so it is searched and never shown.
    """

    status: int | None
    code: str
    kind: str
    parameter: str
    message: str

    @classmethod
    def read(cls, body: Any, status: int | None = None) -> ErrorObject:
        """Read the `error` of a body, or the body itself: an object as OpenAI's, a list of one (Gemini), or a text (Ollama)."""
        if isinstance(body, list) and body:
            body = body[0]
        if isinstance(body, Mapping) and body.get("error"):
            body = body["error"]
        if not isinstance(body, Mapping):
            return cls(status, "", "", "", _as_text(body))
        code = _as_text(body.get("code"))
        kind = _as_text(body.get("type")) or _as_text(body.get("status"))  # Gemini uses the second name
        if status is None and _STATUS.fullmatch(code):
            status = int(code)
        return cls(status, code, kind, _as_text(body.get("param")), _find_message(body))

    @property
    def identifiers(self) -> list[str]:
        """The code, the type and the parameter, where they are identifiers. Identifiers do not quote a conversation."""
        return [text for text in (self.code, self.kind, self.parameter) if _IDENTIFIER.fullmatch(text)]


def _find_message(error: Mapping[str, Any]) -> str:
    """Return the message, with the one of the provider behind a gateway (OpenRouter)."""
    message, metadata = error.get("message") or error.get("detail"), error.get("metadata")
    if isinstance(message, list):  # FastAPI's
        message = " ".join(_as_text(item.get("msg")) for item in message if isinstance(item, Mapping))
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{_as_text(message)} {_as_text(raw)}"


def _as_text(value: Any) -> str:
    return str(value)[:_READ_CHARACTERS] if isinstance(value, str | int) else ""


def find_cause(error: ErrorObject) -> Cause | None:
    """Return the cause of an error, if it is a known one."""
    text = f"{error.code} {error.kind} {error.parameter} {error.message}"
    for pattern, cause in _CAUSES:
        if cause.is_too_long:
            may_be = error.status not in _NO_LENGTH_STATUSES
        else:
            may_be = bool(cause.problem) or error.status in _REQUEST_STATUSES
        if may_be and pattern.search(text):
            return cause
    return _BY_STATUS.get(error.status or 0)


def describe_unknown(error: ErrorObject) -> str:
    """Return the remedy where the cause is unknown."""
    names = ", ".join(dict.fromkeys(error.identifiers))
    return f"{f'it names {names}; ' if names else ''}the log has its words at the level debug (-vv)"


_TOO_LONG = Cause(
    N_("is shown more than it takes; the limit context_tokens is too high for it"), "lower limits.context_tokens", True
)
_NO_CREDIT = Cause(N_("has no credit left"), "add credit to its account")
_BY_STATUS = {402: _NO_CREDIT, TOO_LARGE: _TOO_LONG}

_CAUSES = [
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), cause)
    for pattern, cause in (
        (r"insufficient_quota|insufficient (?:balance|credit|funds)|requires more credits", _NO_CREDIT),
        (
            # OpenAI, vLLM, DeepSeek and OpenRouter name the maximum context length, llama.cpp the context size.
            r"context[ _](?:window|length|size)|maximum (?:prompt|model|input) length"
            r"|max_model_len|(?:prompt|input|request) (?:is )?too (?:long|large)"
            r"|input token count|exceeded max context|model token limit|too many (?:input |prompt )?tokens"
            r"|reduce the length of the (?:messages|prompt|input)|max_tokens must be at least 1|prompt token count"
            r"|`inputs` tokens|tokens to keep from the initial prompt|too large for model with|string_above_max_length",
            _TOO_LONG,
        ),
        (
            r"invalid schema for function|invalid_function_parameters|function_declarations\[|tools\[\d+\]|tools\.\d+\.",
            Cause("", "it refuses the schema of a tool: correct that tool, which its words name in the log (-vv)"),
        ),
        (
            # Ollama; OpenRouter; vLLM; llama.cpp; Groq and OpenAI; DeepSeek.
            r"does(?: not|n't) support (?:the )?(?:tool|function)|support tool use|tool[ _]choice|tools param requires"
            r"|(?:tool|function)[ _-]?call(?:s|ing)?['\"`]* (?:is|are) not|['\"`]tools['\"`] is not supported"
            r"|support parameters?: \[?['\"`]?tools",
            Cause(
                N_("cannot call tools"),
                "choose a model with tools; vLLM needs --enable-auto-tool-choice and --tool-call-parser, llama.cpp --jinja",
            ),
        ),
        (
            r"reasoning_content|reasoning_details|thought_?signature|thinking block",
            Cause("", "it does not take its own reasoning back after a tool call: choose a model or a mode without reasoning"),
        ),
        (
            r"roles? must alternate|alternate user|after the optional system message",
            Cause("", "its chat template wants roles to alternate: set endpoint.merge_messages to true"),
        ),
        (r"stream_options|include_usage", Cause("", "it does not count tokens in a stream: set endpoint.usage to false")),
        (
            r"verified to stream|['\"`]stream['\"`]|stream(?:ing)? (?:is )?(?:not|un)[ -]?support|not support stream",
            Cause("", "it does not stream: set endpoint.stream to false"),
        ),
        (r"\btemperature\b", Cause("", "it refuses the temperature: remove it from the manifest")),
        (r"max_(?:completion_)?tokens", Cause("", "it refuses the limit of an answer: correct limits.answer_tokens")),
        (
            r"response_format|json_schema|structured output",
            Cause("", "it cannot keep to the output schema: choose a model with structured output"),
        ),
        (
            r"content_filter|content management policy|ResponsibleAIPolicy|content exists risk|data_inspection_failed"
            r"|flagged by moderation|requires moderation",
            Cause(N_("was kept from answering by its provider's content filter"), ""),
        ),
        (
            r"model_not_found|model .{0,99}(?:not found|does not exist|not exist)|not a valid model",
            Cause("", "correct the name of the model"),
        ),
    )
]
"""The first that fits counts."""
