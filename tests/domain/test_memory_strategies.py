"""Which turns stay in a window, how their tokens are counted, what a summary without a model keeps."""

from __future__ import annotations

import re
import sys

import pytest

from spade_coreason import MemoryConfig, MemoryStrategy
from spade_coreason.domain.environment.installation import install_hint
from spade_coreason.domain.memory_strategies import MAX_UNBOUNDED_TURNS, count_fitting_turns, turns_to_compact, window_bounds
from spade_coreason.exceptions import ConfigError
from spade_coreason.memory.summaries import extract_sentences
from spade_coreason.memory.tokens import Tokenizer, counter_for, estimate_tokens

PROSE = "The agent keeps what it was told, and says it again when somebody asks for it. " * 20


def config(strategy: MemoryStrategy, limit: int) -> MemoryConfig:
    return MemoryConfig(strategy=strategy, limit=limit, summary_prompt="Shorten it.")


@pytest.mark.parametrize(
    ("sizes", "limit", "kept"),
    [
        ([3, 3, 3, 3], 9, 3),
        ([3, 3, 3, 3], 8, 2),
        ([3, 3], 100, 2),
        ([100, 3, 3], 10, 1),  # larger than the whole buffer, and kept: the history is never empty
        ([3, 100, 1], 10, 1),  # what is older than one that does not fit is not taken instead
        ([], 10, 0),
    ],
)
def test_a_token_buffer_holds_the_newest_turns_that_fit(sizes: list[int], limit: int, kept: int) -> None:
    assert count_fitting_turns(sizes, limit) == kept
    memory, turns = config(MemoryStrategy.TOKEN_BUFFER, limit), len(sizes)
    assert window_bounds(turns, memory, turns, sizes=iter(sizes)) == (kept, turns - kept + 1)


@pytest.mark.parametrize("strategy", [MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE])
def test_turns_stay_in_the_window_until_they_are_compacted(strategy: MemoryStrategy) -> None:
    memory = config(strategy, 3)
    assert turns_to_compact(memory, 3, 0) == range(0)
    assert list(turns_to_compact(memory, 10, 0)) == [1, 2, 3, 4, 5, 6, 7]
    assert window_bounds(10, memory, 10, compacted_through=0) == (10, 1)
    assert list(turns_to_compact(memory, 10, 5)) == [6, 7]
    assert window_bounds(10, memory, 10, compacted_through=7) == (3, 8)


@pytest.mark.parametrize("strategy", [MemoryStrategy.ALL, MemoryStrategy.SUMMARY])
def test_an_unbounded_window_is_limited_in_memory(strategy: MemoryStrategy) -> None:
    assert window_bounds(MAX_UNBOUNDED_TURNS + 50, config(strategy, 3), MAX_UNBOUNDED_TURNS + 50) == (MAX_UNBOUNDED_TURNS, 1)


@pytest.mark.parametrize("strategy", [MemoryStrategy.ALL, MemoryStrategy.SLIDING_WINDOW, MemoryStrategy.TOKEN_BUFFER])
def test_the_other_strategies_compact_no_turns(strategy: MemoryStrategy) -> None:
    assert not turns_to_compact(config(strategy, 3), 1000, 0)


def test_the_estimate_is_near_what_a_tokenizer_counts() -> None:
    for name in ("o200k", "cl100k"):
        assert 0.9 < estimate_tokens(PROSE) / counter_for(name)(PROSE) < 1.3
    assert estimate_tokens("") == 0
    assert estimate_tokens("a") == 1
    assert estimate_tokens("日本語") == 3


@pytest.mark.parametrize("name", ["auto", "o200k", "cl100k", "estimate"])
def test_any_text_has_a_number_of_tokens(name: Tokenizer) -> None:
    count = counter_for(name)
    for text in ("", "word", "<|endoftext|>", "\ud800 alone", "👩‍👩‍👧", "x" * 100_000, "\x00\x01"):
        assert count(text) >= (1 if text else 0)


def test_a_tokenizer_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rs_bpe", None)
    assert counter_for("auto") is estimate_tokens
    with pytest.raises(ConfigError, match=re.escape(f"o200k needs a tokenizer: {install_hint('tokens')}")):
        counter_for("o200k")


def test_a_summary_without_a_model_keeps_the_most_frequent_topics_in_order() -> None:
    lines = [
        "User: My plane leaves on Friday at 7. By the way, hello!",
        "Agent: Noted: your plane leaves on Friday.",
        "User: What about the weather?",
        "Agent: Sunny.",
        "User: And is the plane on Friday on time?",
    ]
    kept = extract_sentences(lines, 130)
    assert kept == extract_sentences(lines, 130)
    assert len(kept) <= 130
    assert kept.splitlines() == [
        "User: My plane leaves on Friday at 7.",
        "Agent: Noted: your plane leaves on Friday.",
        kept.splitlines()[2],
    ]
    assert "hello" not in kept
    assert extract_sentences([], 100) == extract_sentences(["User: "], 100) == ""
