"""The prompts by which Open WebUI asks a model for a title, tags and follow-up questions. No agent gets them."""

from __future__ import annotations

import json
import re
from typing import Any

_BEGINNING = "### Task:"
_QUESTION = re.compile(r"^[^\S\n]*USER:", re.MULTILINE)
_ANSWER = re.compile(r"^[^\S\n]*ASSISTANT:", re.MULTILINE)
_KEY = re.compile(r"\{\s*\"(title|tags|follow_ups|queries|prompt|text)\"\s*:")
_EMPTY: dict[str, Any] = {"tags": ["General"], "follow_ups": [], "queries": [], "prompt": "", "text": ""}
_TITLE_WORDS, _TITLE_CHARACTERS = 6, 60
_NO_TITLE = "New chat"


def answer_task(text: str) -> str | None:
    """Return the answer to a prompt of Open WebUI, in the form that it expects. None for another message.

    A title is made of the first words of the first question. For the rest there is an empty answer.
    """
    if not text.lstrip().startswith(_BEGINNING):
        return None
    before, _, rest = text.partition("<chat_history>")
    history, closing, after = rest.partition("</chat_history>")
    key = _KEY.search(before + after if closing else text)
    if key is None:
        return "{}"
    answer = _make_title(history if closing else "") if key[1] == "title" else _EMPTY[key[1]]
    return json.dumps({key[1]: answer}, ensure_ascii=False)


def _make_title(history: str) -> str:
    _, *found = _QUESTION.split(history, maxsplit=1)
    words = _ANSWER.split(found[0], maxsplit=1)[0].split() if found else []
    title = " ".join(words[:_TITLE_WORDS])[:_TITLE_CHARACTERS].rstrip(" .,;:")
    return f"{title}…" if title and len(words) > _TITLE_WORDS else title or _NO_TITLE
