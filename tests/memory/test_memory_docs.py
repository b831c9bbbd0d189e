"""docs/how-to/knowledge.md: its agent runs, its commands exist, its defaults are those of the settings."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from benchmarks.word_search import PAIRS, measure_table
from spade_coreason import AgentTester, ConfigError, MemoryConfig, MemoryStrategy, Settings
from spade_coreason.app.factories import (
    build_embedder,
    build_memory_config,
    build_memory_limits,
    build_summariser,
    build_token_counter,
)
from spade_coreason.cli.app import cli
from spade_coreason.config.loader import load_settings
from spade_coreason.memory import MemoryLimits
from spade_coreason.memory.knowledge.passages import MAX_CHARACTERS
from spade_coreason.memory.summaries import ExtractiveSummariser, ModelSummariser
from spade_coreason.memory.tokens import TokenCounter
from tests.support.errors import ExpectedErrors

_DOCS = Path(__file__).parents[2] / "docs"
KNOWLEDGE = (_DOCS / "how-to" / "knowledge.md").read_text(encoding="utf-8")
SCORES = (_DOCS / "explanation" / "memory.md").read_text(encoding="utf-8")


async def test_the_documented_librarian_answers_from_its_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [text] = re.findall(r'^```python title="librarian.py"\n(.*?)^```$', KNOWLEDGE, re.M | re.S)
    (tmp_path / "librarian.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "librarian", raising=False)  # another one, of another test
    try:
        async with AgentTester(import_module("librarian").Librarian) as t:
            await t.say("remember the key is under the mat", user="alice@localhost")
            assert (await t.say("Where is the key?", user="alice@localhost"))[0] == "the key is under the mat"
            assert await t.say("Where is the key?", user="bob@localhost") == []
    finally:
        sys.modules.pop("librarian", None)


def test_the_documented_commands_and_numbers_are_those_of_the_program() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", KNOWLEDGE, re.M | re.S)
    group = cli.get_command(click.Context(cli), "knowledge")
    assert isinstance(group, click.Group)
    for line in "".join(blocks).splitlines():
        assert line.split()[:2] == ["spade-coreason", "knowledge"]
        assert line.split()[2] in group.commands
    assert f"at most {MAX_CHARACTERS:,} characters" in KNOWLEDGE


async def test_the_documented_scores_by_words_are_those_of_the_program(database_url: str) -> None:
    documented = re.findall(r"^\| [^|]+ \| [^|]+ \| [0-9.]+ \|$", SCORES, re.M)
    assert documented == await measure_table(database_url)
    for language in (PAIRS[:7], PAIRS[7:14], PAIRS[14:]):
        assert len(language) >= 6
    assert len(documented) == 20


# What the settings make of it


def settings(text: str, tmp_path: Path) -> Settings:
    (tmp_path / "platform.yaml").write_text(f"agents: [{{jid: a@localhost, agent: 'a:B'}}]\n{text}")
    return load_settings(Path("platform.yaml"), tmp_path, {})


def test_the_memory_of_an_agent_overrides_its_manifest_which_overrides_the_common_one(tmp_path: Path) -> None:
    def policy(common: str, own: str, manifest: MemoryConfig | None) -> tuple[str, int]:
        (tmp_path / "platform.yaml").write_text(
            f"memory: {common}\nagents: [{{jid: a@localhost, agent: 'a:B', memory: {own}}}]\n"
        )
        found = load_settings(Path("platform.yaml"), tmp_path, {})
        made = build_memory_config(found.memory, found.agents[0].memory, manifest)
        return made.strategy.value, made.limit

    manifest = MemoryConfig(strategy=MemoryStrategy.TOKEN_BUFFER, limit=4000)
    assert policy("null", "null", None) == ("sliding_window", 20)
    assert policy("{strategy: summary, limit: 5}", "null", None) == ("summary", 5)
    assert policy("{strategy: summary, limit: 5}", "null", manifest) == ("token_buffer", 4000)
    assert policy("{strategy: summary, limit: 5}", "{limit: 9}", None) == ("summary", 9)
    assert policy("null", "{strategy: vector_store, limit: 9}", manifest) == ("vector_store", 9)
    assert policy("null", "{strategy: summary}", manifest) == ("summary", 4000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("knowledge: {embedder: openai, model: m}", "needs url"),
        ("knowledge: {embedder: local}", "needs model"),
        ("knowledge: {embedder: openai, model: m, url: 'localhost:1'}", "is not the address of an API"),
        ("memory: {summariser: {url: 'http://127.0.0.1:1/v1'}}", "url and model must be set together"),
        ("memory: {strategy: everything}", "strategy"),
        ("memory: {limit: 0}", "limit"),
        ("memory: {tokenizer: words}", "must be auto, o200k, cl100k, estimate, or a function of your own, as module:function"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        settings(text, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_limits_of_the_memory_are_configured(tmp_path: Path) -> None:
    assert build_memory_limits(settings("", tmp_path)) == MemoryLimits()
    own = "limits: {memory_entry_bytes: 10, memory_conversation_bytes: 100, memory_journal_bytes: 50}"
    assert build_memory_limits(settings(own, tmp_path)) == MemoryLimits(10, 100, 50)


def test_tokens_are_counted_by_any_function_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("counting:words cannot count the tokens of a text of 4 characters")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    functions = (
        "def words(text): return len(text.split()) or 1 / 0\ndef none(text): ...\ndef fails(text): raise OSError('away')\n"
    )
    (tmp_path / "counting.py").write_text(functions)

    def count(name: str) -> TokenCounter:
        found = settings(f"memory: {{strategy: token_buffer, tokenizer: 'counting:{name}'}}", tmp_path)
        return build_token_counter(found.memory_of(found.agents[0]), tmp_path, "agents[0].memory.tokenizer")

    assert count("words")("one two three") == 3
    counted = count("words")
    assert [counted("    "), counted("    ")] == [1, 1]  # estimated
    assert caplog.text.count("counting:words cannot count the tokens of a text of 4 characters; the number is estimated") == 1
    for name, problem in (("none", "returned None for a text"), ("fails", "OSError: away"), ("wards", '"words"')):
        with pytest.raises(ConfigError, match=rf"^agents\[0\]\.memory\.tokenizer: .*{problem}") as caught:
            count(name)
        assert "\n" not in str(caught.value)
    sys.modules.pop("counting", None)


def test_the_models_that_are_named_are_made_and_their_keys_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "platform.yaml").write_text(
        "knowledge: {embedder: openai, url: 'http://127.0.0.1:1/v1', model: m, api_key: s3cret}\n"
        "memory: {summariser: {url: 'http://127.0.0.1:1/v1', model: l, api_key: s3cret}}\n"
    )
    found = load_settings(Path("platform.yaml"), tmp_path, {})
    embedder = build_embedder(found)
    assert embedder is not None
    assert embedder.model == "m"
    assert isinstance(build_summariser(found.memory), ModelSummariser)
    assert "s3cret" not in repr(found) + found.model_dump_json()
    without = load_settings(None, tmp_path, {})
    assert build_embedder(without) is None
    assert isinstance(build_summariser(without.memory), ExtractiveSummariser)
