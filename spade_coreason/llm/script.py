"""A script that plays a language model in demonstrations, and says that it is one.

It calls the tool with whose name a text begins, such as "remind me", and remembers another statement. For a question it asks
the agent whose name the question has, calls the tool whose words it has, or repeats a remembered fact.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..domain.jid import local_part
from ..domain.texts.text import extract_keywords, keyword_coverage, split_words
from .model.stand_in import StandInAnswer, encode_event
from .prompts import content_texts
from .tools.builtin import RESERVED_TOOL_NAMES

MODEL_NAME = "script"
REMEDY = "For a real one set OPENAI_API_KEY (or OPENAI_BASE_URL) and OPENAI_MODEL."
NOTICE = f"(I am a script that plays a language model. {REMEDY})"
REMEMBER_TOOL, ASK_TOOL = "remember_interaction_info", "ask_agent"
_DELAY_S = 0.02
"""Seconds between two words."""

_MEMORY_HEADING = "Previous interactions:\n- "
_ROOM_MESSAGE = re.compile(r'"(?:[^"\\]|\\.)*" says in the room: (".*")', re.DOTALL)
_REMEMBER_PREFIX = re.compile(r"^\s*(please )?remember( that)?\b[\s:,]*", re.IGNORECASE)
_PIECE = re.compile(r"\S+\s*")
_ORIGINAL_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_FRAGMENT_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A text of the script, or the tool that it calls."""

    text: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


def choose_reply(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> ScriptedReply:
    """Reply to the last message. `tools` are functions with `name`, `description` and `parameters`."""
    reply = _choose_plain_reply(messages, {tool["name"]: tool for tool in tools})
    if not reply.tool and not any(message["role"] == "assistant" and message.get("content") for message in messages):
        return ScriptedReply(f"{reply.text}\n\n{NOTICE}")
    return reply


def _choose_plain_reply(messages: Sequence[Mapping[str, Any]], tools: Mapping[str, Mapping[str, Any]]) -> ScriptedReply:
    if messages[-1]["role"] == "tool":
        return ScriptedReply(_render_tool_result(messages))
    question = _strip_speaker("\n".join(content_texts(messages[-1].get("content"))).strip())
    own_tools = [tool for name, tool in tools.items() if name not in RESERVED_TOOL_NAMES]
    if not question.endswith("?"):
        if (order := _find_order(question, own_tools)) is not None:
            return order
        information = _REMEMBER_PREFIX.sub("", question)
        if information and REMEMBER_TOOL in tools:
            return ScriptedReply(tool=REMEMBER_TOOL, arguments={"information": information})
        if not information:
            return ScriptedReply("Tell me something that I should remember.")
    if (asked := _find_agent_call(question, extract_keywords(question), tools.get(ASK_TOOL))) is not None:
        return asked
    keywords = extract_keywords(question)
    facts = [(keyword_coverage(keywords, " ".join(split_words(fact))), fact) for fact in _find_remembered_facts(messages)]
    fact_score, fact = max(facts, key=lambda scored: scored[0], default=(0.0, ""))
    tool_score, call = _find_tool_call(question, keywords, own_tools)
    if call is not None and tool_score >= fact_score:
        return call
    if fact_score:
        return ScriptedReply(f'You told me: "{fact}"')
    if own_tools:
        names = ", ".join(tool["name"] for tool in own_tools)
        return ScriptedReply(f"I know only what you tell me, and what my tools say: {names}. Ask with the words of a tool.")
    return ScriptedReply("I know only what you tell me, and of that you told me nothing.")


def _strip_speaker(text: str) -> str:
    """Return the text of a message in a room, without the frame around it."""
    said = _ROOM_MESSAGE.fullmatch(text)
    return str(json.loads(said[1])).strip() if said is not None else text


def _render_tool_result(messages: Sequence[Mapping[str, Any]]) -> str:
    """Render the result of a tool as an answer."""
    result = str(messages[-1]["content"])
    function = next(message["tool_calls"][0]["function"] for message in reversed(messages) if message.get("tool_calls"))
    name, arguments = function["name"], json.loads(function["arguments"])
    if result.startswith("error:"):
        return f"My tool {name} does not work: {result.removeprefix('error:').strip()}"
    if name == REMEMBER_TOOL:
        return f'I will remember: "{arguments["information"]}"'
    shown = ", ".join(f"{parameter}: {value}" for parameter, value in arguments.items())
    return f"My tool {name}{f' ({shown})' if shown else ''} says: {result}"


def _find_remembered_facts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    texts = [str(message["content"]) for message in messages if message["role"] == "system"]
    return [
        fact for text in texts if text.startswith(_MEMORY_HEADING) for fact in text.removeprefix(_MEMORY_HEADING).split("\n- ")
    ]


# Tools


def _find_tool_call(
    question: str, keywords: Sequence[str], tools: Sequence[Mapping[str, Any]]
) -> tuple[float, ScriptedReply | None]:
    """Return the call of the tool whose words cover most of the question, and how much. None if no tool fits."""
    best_score, best = 0.0, None
    for tool in tools:
        words = extract_keywords(" ".join(_list_texts(tool)))
        score = keyword_coverage(keywords, " ".join(words))
        if score > best_score and (arguments := _fill_arguments(question, keywords, words, tool["parameters"])) is not None:
            best_score, best = score, ScriptedReply(tool=tool["name"], arguments=arguments)
    return best_score, best


def _find_order(text: str, tools: Sequence[Mapping[str, Any]]) -> ScriptedReply | None:
    """Return the call of the tool with whose name a text begins. What it requires are the parts of the rest between "to"."""
    words = " ".join(text.split())
    for tool in tools:
        phrase, parameters = tool["name"].replace("_", " "), tool["parameters"]
        required, properties = parameters.get("required", ()), parameters.get("properties", {})
        parts = words[len(phrase) + 1 :].split(" to ", max(0, len(required) - 1))
        is_whole = len(parts) == max(1, len(required)) and (parts[0] or not required)
        if is_whole and f"{words.lower()} ".startswith(f"{phrase} "):
            arguments = {
                name: int(part) if properties[name].get("type") == "integer" and part.isdecimal() else part
                for name, part in zip(required, parts, strict=False)
            }
            return ScriptedReply(tool=tool["name"], arguments=arguments)
    return None


def _find_agent_call(question: str, keywords: Sequence[str], tool: Mapping[str, Any] | None) -> ScriptedReply | None:
    """Return the call that asks the agent whose name the question has. The agent gets the other words of the question."""
    for agent in _list_choices(tool["parameters"]["properties"]["agent"]) if tool is not None else ():
        name = local_part(agent)
        if _has_words(question, name):
            rest = " ".join(_find_other_words(question, keywords, split_words(name)))
            return ScriptedReply(tool=ASK_TOOL, arguments={"agent": agent, "question": rest or question})
    return None


def _list_texts(tool: Mapping[str, Any]) -> Iterator[str]:
    yield tool["name"]
    yield tool.get("description") or ""
    for name, schema in tool["parameters"].get("properties", {}).items():
        yield name
        yield schema.get("description") or ""
        yield from map(str, _list_choices(schema))


def _fill_arguments(
    question: str, keywords: Sequence[str], tool_words: Sequence[str], parameters: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Fill the parameters of a tool from a question. None if a required one is left.

    A parameter with choices takes the choice that the question has, a number the next number. A required text takes the words
    of the question that are not the tool's own.
    """
    numbers = [float(number) if "." in number else int(number) for number in _NUMBER.findall(question)]
    rest = " ".join(_find_other_words(question, keywords, tool_words))
    required: Collection[str] = parameters.get("required", ())
    arguments: dict[str, Any] = {}
    for name, schema in parameters.get("properties", {}).items():
        kinds = {option.get("type") for option in _list_options(schema)}
        if choices := _list_choices(schema):
            chosen = [choice for choice in choices if _has_words(question, str(choice))]
            if chosen:
                arguments[name] = chosen[0]
        elif kinds & {"integer", "number"}:
            fitting = [number for number in numbers if "number" in kinds or isinstance(number, int)]
            if fitting:
                numbers.remove(fitting[0])
                arguments[name] = fitting[0]
        elif "string" in kinds and name in required and rest:
            arguments[name], rest = rest, ""
        if name in required and name not in arguments:
            return None
    return arguments


def _list_options(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    options: Sequence[Mapping[str, Any]] = schema.get("anyOf") or [schema]
    return options


def _list_choices(schema: Mapping[str, Any]) -> list[Any]:
    return [
        choice
        for option in _list_options(schema)
        for choice in option.get("enum") or ([option["const"]] if "const" in option else [])
    ]


def _has_words(question: str, choice: str) -> bool:
    words = split_words(choice)
    return bool(words) and keyword_coverage(words, " ".join(split_words(question))) == 1.0


def _find_other_words(question: str, keywords: Sequence[str], tool_words: Sequence[str]) -> Iterator[str]:
    """Find the words of a question, as they are written, that are keywords and not words of the tool."""
    spaced_tool_words = " ".join(tool_words)
    for word in _ORIGINAL_WORD.findall(question):
        parts = split_words(word)
        if set(parts) & set(keywords) and not keyword_coverage(parts, spaced_tool_words):
            yield word


# On the wire


class ScriptStandIn:
    """The script in place of the server of a model, in the process of the platform."""

    url = "http://script.invalid/v1"
    model = MODEL_NAME

    async def answer(self, path: str, body: dict[str, Any]) -> StandInAnswer:
        """Answer with the reply of the script."""
        return StandInAnswer(_stream_reply(body), headers={"Content-Type": "text/event-stream; charset=utf-8"})

    async def pause(self, seconds: float) -> None:
        """Wait, though the script never fails."""
        await asyncio.sleep(seconds)


async def _stream_reply(body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the events of the reply to a request for a streamed chat completion."""
    reply = choose_reply(body["messages"], [tool["function"] for tool in body.get("tools", ())])
    for choice in _build_choices(reply):
        yield encode_event(
            {"id": "script", "object": "chat.completion.chunk", "created": 0, "model": MODEL_NAME, "choices": [choice]}
        )
        await asyncio.sleep(_DELAY_S)
    yield encode_event(None)


def _build_choices(reply: ScriptedReply) -> Iterator[dict[str, Any]]:
    yield _build_choice({"role": "assistant", "content": None if reply.tool else ""})
    if reply.tool:
        function = {"name": reply.tool, "arguments": ""}
        yield _build_choice({"tool_calls": [{"index": 0, "id": "call_script", "type": "function", "function": function}]})
        arguments = json.dumps(dict(reply.arguments))
        for start in range(0, len(arguments), _FRAGMENT_CHARACTERS):
            fragment = {"arguments": arguments[start : start + _FRAGMENT_CHARACTERS]}
            yield _build_choice({"tool_calls": [{"index": 0, "function": fragment}]})
    for piece in _PIECE.findall(reply.text):
        yield _build_choice({"content": piece})
    yield _build_choice({}, "tool_calls" if reply.tool else "stop")


def _build_choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}
