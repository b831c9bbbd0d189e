"""The prompts of chat front ends as they send them: in `prompts/`, from `open-webui` 0.12.4 and `@librechat/agents` 3.2.21."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PROMPTS = Path(__file__).with_name("prompts")
CHAT = ("How do I reach the {agents} over HTTP,\nand with what?", "With a key.", "And a { title }?")
"""A chat as a front end has it: question, answer and question."""


def prompt_of(name: str, chat: Sequence[str] = CHAT) -> str:
    """Return a prompt about a chat."""
    history = "\n".join(f"{'ASSISTANT' if number % 2 else 'USER'}: {text}" for number, text in enumerate(chat))
    values = {
        "MESSAGES": history,
        "COMPACTED_MESSAGES": history,
        "prompt": chat[-1],
        "PROMPT": chat[-1],
        "TYPE": "General",
        "TOOLS": '[{"name": "clock"}]',
        "responses": '"""Take a {key}."""\n\n"""Ask the operator."""',
    }
    text = (PROMPTS / f"{name}.txt").read_text(encoding="utf-8")
    text = re.sub(r"\{\{(\w+)(?::END:\d+)?\}\}", lambda found: values.get(found[1], ""), text)
    return text.replace("{convo}", f"User: {chat[0]}\nAI: {chat[1]}")


def wrap(question: str, *documents: str) -> str:
    """Return a question behind documents, as Open WebUI sends it with a file or a search."""
    sources = "\n".join(f'<source id="{number}" name="a.txt">{text}</source>' for number, text in enumerate(documents, 1))
    template = (PROMPTS / "documents.txt").read_text(encoding="utf-8")
    return template.replace("{{CONTEXT}}", sources) + "\n" + question
