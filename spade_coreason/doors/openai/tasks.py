"""The prompts by which Open WebUI and LibreChat ask a model for titles, tags and the like. No agent gets them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .messages import UserMessage

_BEGINNING, _ENDS = "### Task:", ("</chat_history>", "#### Output:")
"""The first words of most prompts of Open WebUI, and their last ones. A question with documents begins so too."""
_KEY = re.compile(r"JSON format:[\s`]*\{\s*\"(title|tags|follow_ups|queries|prompt|text)\"\s*:")
_EMPTY: dict[str, Any] = {"tags": ["General"], "follow_ups": [], "prompt": "", "text": ""}
_NO_ANSWER = (
    "Your task is to reflect the speaker's likely facial expression through a fitting emoji.",
    "### Task:\nSummarize the conversation history that will be compacted out of the active chat context.",
)
"""The beginnings of prompts to which Open WebUI has an answer of its own, if it gets none."""
_MERGING = "You have been provided with a set of responses from various models to the latest user query:"
_RESPONSES = "\n\nResponses from models: "
_TOOLS, _TOOL_QUERIES = "Available Tools: ", ("Query: ", "History:\n")
"""The beginnings of the system prompt and of the text by which Open WebUI asks for the tools that it is to run."""
_TITLE = "Provide a concise, 5-word-or-less title for the conversation"
_TITLE_AND_LANGUAGE = "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title"
_QUESTION = re.compile(r"^[^\S\n]*(?:USER|User):", re.MULTILINE)
_ANSWER = re.compile(r"^[^\S\n]*(?:ASSISTANT|AI):", re.MULTILINE)
_TITLE_WORDS, _TITLE_CHARACTERS = 6, 60
_NO_TITLE = "New chat"


def answer_task(message: UserMessage) -> str | None:
    """Return the answer to a prompt of a front end, in the form that it expects. None for a question to the agent.

    A title is made of the first words of the first question. A search looks for the last question, and responses to merge are
    put one below the other. For the rest there is an empty answer.
    """
    text = message.text
    if message.earlier:  # a prompt has the chat in itself
        return None
    if message.system_prompt.startswith(_TOOLS) and text.startswith(_TOOL_QUERIES):
        return '{"tool_calls": []}'
    if text.startswith(_NO_ANSWER):
        return ""
    if text.startswith(_MERGING):
        responses = text.partition(_RESPONSES)[2].removeprefix('"""').removesuffix('"""')
        return "\n\n---\n\n".join(responses.split('"""\n\n"""'))
    if text.startswith(_TITLE):
        return _make_title(text)
    if text.startswith(_TITLE_AND_LANGUAGE):
        return json.dumps({"language": "", "title": _make_title(text)}, ensure_ascii=False)
    before, _, rest = text.partition("<chat_history>")
    if not (text.startswith(_BEGINNING) and text.endswith(_ENDS) and rest and (key := _KEY.search(before))):
        return None
    history = rest.rpartition("</chat_history>")[0]
    answers = {**_EMPTY, "title": _make_title(history), "queries": [history.rpartition("USER:")[2].strip()]}
    # Open WebUI looks for the last brace that opens.
    encoded = json.dumps(answers[key[1]], ensure_ascii=False).replace("{", "\\u007b").replace("}", "\\u007d")
    return f'{{"{key[1]}": {encoded}}}'


def _make_title(history: str) -> str:
    _, *found = _QUESTION.split(history, maxsplit=1)
    words = _ANSWER.split(found[0], maxsplit=1)[0].split() if found else []
    title = " ".join(words[:_TITLE_WORDS])[:_TITLE_CHARACTERS].rstrip(" .,;:")
    return f"{title}…" if title and len(words) > _TITLE_WORDS else title or _NO_TITLE
