"""An assistant with a language model: it remembers, looks into documents, and asks other agents."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from spade_coreason.llm.agent import LLMAgent


def current_time(timezone: str = "UTC") -> str:
    """The date and the time now.

    Args:
        timezone: a name such as Europe/Madrid
    """
    try:
        return datetime.now(ZoneInfo(timezone)).strftime("%A, %d %B %Y, %H:%M (%Z)")
    except (ZoneInfoNotFoundError, ValueError):
        return f"There is no time zone {timezone!r}; use a name such as Europe/Madrid."


class AssistantAgent(LLMAgent):
    """Answers with a language model, remembers what matters to you, and looks into documents."""

    default_prompt = (
        "You are a helpful assistant whom people write to in a chat. Answer briefly and plainly, in the language in which you"
        " are asked; Markdown is welcome. When a person tells you something that will matter later (a name, a wish, a date, a"
        " decision), remember it with remember_interaction_info, once. When you do not know something, look it up with recall"
        " before you say so. Never make up facts."
    )
    default_tools = (current_time,)
