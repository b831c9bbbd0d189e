"""No regular expression of the package takes more than linear time, whatever the text is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from spade_coreason.doors.openai.messages import UserMessage, digest_history
from spade_coreason.doors.openai.tasks import answer_task
from tests.support.expressions import Expression, Samples, describe_excess, find_expressions, hostile_texts, measure

pytestmark = pytest.mark.timeout(1800)  # it measures its own time of the processor, of which a busy machine gives little
EVERY_LENGTH = "EVERY_LENGTH" in os.environ
"""Each text is tried up to 1 MiB: some minutes, in `make chaos`."""


SHARES = 6
"""The tests among which all expressions are divided, so that they run beside each other."""


def _constant(module: str, name: str) -> Any:
    return getattr(import_module(f"spade_coreason.{module}"), name)


def make_samples() -> Samples:
    """Return values of the variables in expressions that are made from them: names, words and marks of every kind."""
    start, gap = _constant("llm.guardrails.patterns", "_WORD_START"), _constant("llm.guardrails.patterns", "_WORD_GAP")
    return {
        "domain/texts/text.py": [
            {"beginning": word[: max(5, len(word) - 2)], "word": word} for word in ("delivery", "a" * 64, "ab" * 32)
        ],
        "llm/guardrails/patterns.py": [{"bounded": [rf"{start}bad{gap}word(?!\w)", rf"{start}aa{gap}aa(?!\w)", "秘密"]}],
        "llm/model/causes.py": [{"pattern": pattern.pattern} for pattern, _ in _constant("llm.model.causes", "_CAUSES")],
        "llm/model/client.py": [{"field": field} for field in ("thought_signature", "aa")],
        "llm/output.py": [{"longest_first": ["[[END]]", "<end>", "aab", "aa"]}],
        "memory/knowledge/passages.py": [{"level": level} for level in range(4)],
        "xmpp/codec/addressing.py": [
            {"nick": nick, "flags": flags} for nick in ("Ann Lee", " ", "  a", "@@", ":") for flags in (0, re.IGNORECASE)
        ],
        "xmpp/codec/markdown/spans.py": [{"mark": mark} for mark in "*_~"],
    }


TITLE_TASK = '### Task:\nGenerate a title. JSON format: { "title": "…" }\n<chat_history>HISTORY</chat_history>'
# The former expressions of the package that took more.
THOUGHTS = r"<details type=\"reasoning\".*?</details>|<think>.*?</think>"
HISTORY = r"<chat_history>(.*?)</chat_history>"
FIRST_QUESTION = r"^\s*USER:\s*(.*?)(?=^\s*ASSISTANT:|\Z)"


@pytest.mark.parametrize("share", range(SHARES))
def test_no_expression_takes_more_than_linear_time(share: int) -> None:
    expressions = find_expressions(make_samples())
    assert len(expressions) > 150
    own = expressions[share::SHARES]
    assert [found for one in own if (found := describe_excess(one, every_length=EVERY_LENGTH)) is not None] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        pytest.param(r"<think>.*?</think>", "sub", id="thoughts"),
        pytest.param(THOUGHTS, "sub", id="reasoning"),
        pytest.param(HISTORY, "search", id="history"),
        pytest.param(FIRST_QUESTION, "search", id="first question"),
        pytest.param(r"[ \t]*> ?", "sub", id="quotation"),
        pytest.param(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$", "findall", id="argument"),
        pytest.param(r"(://[^/@:]*):.*@", "sub", id="password"),
        pytest.param(r"\s*(?:[@＠]?\ \s*[:,]|[@＠]\ (?=\s|$))", "match", id="name of blanks"),
        pytest.param(r"(?:\w+,?)+;", "fullmatch", id="exponential"),
        pytest.param(rb"\s+$", "sub", id="bytes"),
    ],
)
def test_an_expression_that_takes_more_is_found(pattern: str | bytes, method: str) -> None:
    compiled: re.Pattern[Any] = re.compile(pattern, re.DOTALL | re.MULTILINE)
    assert describe_excess(Expression("", compiled, frozenset({method})), tries=1) is not None


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        pytest.param(lambda text: digest_history([("assistant", text)]), THOUGHTS, id="thoughts"),
        pytest.param(lambda text: answer_task(UserMessage(f"### Task:\n{text}</chat_history>")), HISTORY, id="history"),
        pytest.param(lambda text: answer_task(UserMessage(TITLE_TASK.replace("HISTORY", text))), FIRST_QUESTION, id="question"),
    ],
)
def test_what_replaced_an_expression_takes_linear_time_too(function: Callable[[str], object], pattern: str) -> None:
    texts = hostile_texts(re.compile(pattern, re.DOTALL | re.MULTILINE))
    assert [found for text in texts if (found := measure(function, text, EVERY_LENGTH)) is not None] == []
