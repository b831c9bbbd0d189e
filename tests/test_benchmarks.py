"""The benchmarks run without errors; `make bench` shows their results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import isolation
from benchmarks.exchange.measurement import ExchangeRound, find_kinds, measure_medians, targets
from benchmarks.exchange.pair import ask_in_turn
from benchmarks.figures import find_exceeded, load_figures
from benchmarks.memory import WAYS
from benchmarks.opening import Hold
from benchmarks.tokens import count_package, count_tokens, count_words
from benchmarks.workers import (
    LOADS,
    ONE,
    TWO,
    TWO_FULL,
    Round,
    WorkersFigures,
    lines as worker_lines,
    targets as worker_targets,
)
from tests.support.servers import postgres, prosody
from tests.support.servers.requirements import require

ROOT = Path(__file__).parents[1]
FIGURES = {"instructions": 100_000, "path modules": 45}


def benchmarks(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280, **options)


@pytest.mark.servers
@pytest.mark.release
def test_a_quick_run_measures_every_agent_beside_the_others(tmp_path: Path) -> None:
    require("Prosody", prosody.installed())
    done = benchmarks("--only", "prosody", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    measured = figures["speed"]["prosody"]["measured"]
    assert set(measured) == {"slixmpp", "SPADE", "hosted", "hosted, durability normal"}
    assert all(value > 0 for figure in measured.values() for value in figure.values())
    assert figures["speed"]["prosody"]["version"].startswith("Prosody ")
    for target in figures["speed"]["prosody"]["targets"]:
        assert f"{'✓' if target['is_reached'] else '✗'} {target['name']}" in done.stdout


@pytest.mark.servers
@pytest.mark.release
def test_a_quick_run_measures_asks_between_agents_beside_others(tmp_path: Path) -> None:
    require("Prosody", prosody.installed())
    done = benchmarks(
        *("--only", "exchange", "--server", "prosody", "--pairs", "SPADE", "hosted", "hosted, a stream", "local"),
        *("--json", str(tmp_path / "figures.json")),
    )
    assert done.returncode == 0, done.stderr
    exchange = json.loads((tmp_path / "figures.json").read_text())["exchange"]["prosody"]
    assert set(exchange["measured"]) == {"slixmpp", "SPADE", "hosted", "hosted, a stream", "local"}
    assert all(value > 0 for figures in exchange["measured"].values() for value in figures.values())
    assert all(len(round_["latencies_ms"]) == 10 for rounds in exchange["rounds"].values() for round_ in rounds)
    assert "✓ peers.ask" in done.stdout or "✗ peers.ask" in done.stdout


def test_a_peer_that_is_not_installed_is_skipped_with_a_line(tmp_path: Path) -> None:
    found, missing = find_kinds(["A2A", "hosted", "AutoGen"], tmp_path / "no-python")
    assert found == ["slixmpp", "hosted"]
    assert missing == [
        f"{name} is not compared: it is not installed; `make bench-peers` installs it" for name in ("A2A", "AutoGen")
    ]


def test_an_exchange_is_compared_within_each_round() -> None:
    def rounds(*answers_per_s: float) -> list[ExchangeRound]:
        return [ExchangeRound(value, 100.0, [1.0, 2.0, 3.0], asker_cpu_us=60.0) for value in answers_per_s]

    measured = {"slixmpp": rounds(100, 1000, 10), "hosted": rounds(60, 600, 9), "local": rounds(240, 1800, 36)}
    assert measure_medians(measured)["hosted"].answers_ratio == 0.6
    assert [(target.value, target.is_reached) for target in targets("prosody", measured)] == [
        (0.6, True),
        (1.0, True),
        (4, True),
    ]
    slower = {**measured, "A2A": rounds(20, 200, 3), "AutoGen": rounds(60, 600, 9)}
    assert [target.name.rpartition(" ")[2] for target in targets("prosody", slower) if not target.is_reached] == ["A2A"]
    assert "AutoGen" not in "".join(target.name for target in targets("prosody", slower))
    assert "AutoGen" in "".join(target.name for target in targets("ejabberd", slower))


async def test_a_pair_that_answers_another_question_ends_the_measurement() -> None:
    async def answer(text: str) -> str:
        return text.replace("Question 2", "Question 1")

    assert len(await ask_in_turn(answer, [1, 3])) == 2
    with pytest.raises(RuntimeError, match="asked 'Question 2"):
        await ask_in_turn(answer, [1, 2, 3])


@pytest.mark.servers
@pytest.mark.release
def test_a_quick_run_measures_what_further_agents_cost(tmp_path: Path) -> None:
    require("Prosody", prosody.installed())
    done = benchmarks("--only", "further", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    further = json.loads((tmp_path / "figures.json").read_text())["further"]
    assert further["agents"] == 5
    assert min(further["start_ms"], further["online_kib"], further["answered_kib"]) > 0
    assert "CPU of a start" in done.stdout
    assert "memory of a further agent" in done.stdout


@pytest.mark.servers
@pytest.mark.release
def test_a_run_measures_how_soon_people_see_something(tmp_path: Path) -> None:
    require("Prosody", prosody.installed())
    done = benchmarks("--only", "promptness", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "figures.json").read_text())["promptness"]["prosody"]
    assert len(measured["typing"]["waits_s"]) == len(measured["first_words"]["waits_s"]) == 100
    assert "first words after the agent said them" in done.stdout


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.instructions", "--check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.servers
@pytest.mark.release
def test_the_path_of_a_message_and_the_package_are_within_their_figures() -> None:
    require("Prosody", prosody.installed())
    done = check("tokens", "path")
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"^(?:tokens|path packages|path modules|path changes): [1-9][\d,]* \(the figure is ", done.stdout, re.M)
    assert len(counts) == 4, done.stdout


@pytest.mark.release
def test_the_check_fails_when_a_figure_is_exceeded(tmp_path: Path) -> None:
    figures = tmp_path / "figures.toml"
    figures.write_text(f"[tokens]\nbase = {count_package() * 98 // 100}\n")
    done = check("tokens", "--figures", str(figures))
    assert done.returncode == 1
    assert re.fullmatch(
        r"tokens: [\d,]+ is more than [\d,]+: .+ say in benchmarks/figures.toml what was bought, within its budget\n",
        done.stderr,
    )


def test_a_measurement_may_exceed_its_figure_by_one_per_cent() -> None:
    assert find_exceeded({"instructions": 101_000, "path modules": 45, "another build": 7}, FIGURES) == []
    [too_many, too_long] = find_exceeded({"instructions": 101_001, "path modules": 46}, FIGURES)
    assert too_many.startswith("instructions: 101,001 is more than 100,000: ")
    assert too_long.startswith("path modules: 46 is more than 45: ")


def test_a_figure_is_raised_only_by_a_line_that_says_what_was_bought(tmp_path: Path) -> None:
    file = tmp_path / "figures.toml"
    raises = "{ by = 2, budget = 2, bought = 'rooms' }, { by = 1, budget = 3, bought = 'files' }"
    file.write_text(f"[path.modules]\nbase = 45\nraises = [{raises}]\n")
    assert load_figures(file) == {"path modules": 48}
    file.write_text("[path.modules]\nbase = 45\nraises = [{ by = 2, budget = 2, bought = ' ' }]\n")
    with pytest.raises(ValueError, match="path modules: a raise does not say what was bought"):
        load_figures(file)
    for budget in ("", ", budget = 1"):
        file.write_text(f"[path.modules]\nbase = 45\nraises = [{{ by = 2{budget}, bought = 'rooms' }}]\n")
        with pytest.raises(ValueError, match="path modules: the raise for 'rooms' exceeds its budget of"):
            load_figures(file)


def test_comments_docstrings_and_layout_are_no_tokens() -> None:
    source = '"""A module."""\n\n\ndef f(a: int) -> str:\n    """Return a text."""\n    return "a" * a  # so many times\n'
    assert count_tokens(source) == len('def f ( a : int ) -> str : return "a" * a'.split())


def test_an_f_string_is_one_token_on_every_python() -> None:
    assert count_tokens('text = f"a {b + c:{width}} d" "e"\n') == len("text = f-string e".split())


@pytest.mark.parametrize("prefix", ["", "f", "rb"])
def test_a_long_string_counts_by_its_words(prefix: str) -> None:
    short, long = "let a = b; " * 10, "let a = b; " * 20
    assert count_tokens(f'code = {prefix}"{short}"\n') == len("code = string".split())
    assert count_tokens(f'code = {prefix}"{long}"\n') == len(f"code = {prefix}".split()) + 60


def test_strings_side_by_side_are_one_string_and_a_docstring_is_none() -> None:
    half = "let a = b; " * 10
    assert count_tokens(f"code = (\n    '{half}'  # half\n    '{half}'\n)\n") == len("code = ( )".split()) + 60
    documented = f'LIMIT = "one"\n"""{half}{half}"""\nOTHER = "two"\n'
    assert count_tokens(documented) == len("LIMIT = one OTHER = two".split())


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".js", "/* long\n */ if (a) b('http://c', \"/*\"); // so\n"),
        (".html", "<!-- a --><p>b{# c #}</p>"),
        (".css", "/* a */ p { --b: 1px; }"),
    ],
)
def test_pages_styles_and_scripts_count_by_their_words_and_marks(suffix: str, text: str) -> None:
    tokens = {".js": "if ( a ) b ( ' http : / / c ' , \" / * \" ) ;", ".html": "< p > b < / p >", ".css": "p { - - b : 1px ; }"}
    assert count_words(text, suffix) == len(tokens[suffix].split())


@pytest.mark.release
def test_a_quick_run_measures_the_memory_without_a_server(tmp_path: Path) -> None:
    done = benchmarks("--only", "memory", "--json", str(tmp_path / "figures.json"), env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    memory = json.loads((tmp_path / "figures.json").read_text())["memory"]
    assert set(memory["add_us"]) == set(WAYS)
    assert all(us > 0 for by_size in memory["add_us"].values() for us in by_size.values())
    assert memory["open_s"] > 0
    assert "add (normal) at 1,000 entries against 100" in done.stdout
    assert f"a bare line, synced{memory['sync_us']:18.1f}" in done.stdout


@pytest.mark.release
def test_a_quick_run_measures_recall(tmp_path: Path) -> None:
    done = benchmarks("--only", "recall", "--json", str(tmp_path / "figures.json"), env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "figures.json").read_text())["recall"]
    assert measured["documents"] == 500
    assert measured["by_words_ms"] > 0
    assert 0 < measured["by_meaning_ms"] <= measured["by_meaning_p99_ms"]
    assert "recall over 500 documents: " in done.stdout


@pytest.mark.release
def test_a_quick_run_measures_long_sessions(tmp_path: Path) -> None:
    done = benchmarks("--only", "sessions", "--json", str(tmp_path / "figures.json"), env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    sessions = json.loads((tmp_path / "figures.json").read_text())["sessions"]
    assert sessions["sizes"] == [100, 2000]
    assert set(sessions["medians_us"]) == {"history(5)", "history(5, somewhere)", "loading", "a turn"}
    assert sessions["turns_per_s"] > 0
    assert sessions["commit_per_turn_per_s"] > 0
    assert "durable turns/s: " in done.stdout


@pytest.mark.release
def test_a_quick_run_measures_an_agent_with_a_language_model_beside_a_bare_stream(tmp_path: Path) -> None:
    done = benchmarks("--only", "thinking", "--json", str(tmp_path / "figures.json"), env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    thinking = json.loads((tmp_path / "figures.json").read_text())["thinking"]
    assert thinking["turns"] == 50
    assert all(thinking[name] > 0 for name in ("bare_us", "ours_us", "bare_token_us", "ours_token_us"))
    assert "LLMAgent, CPU added to a token: " in done.stdout


@pytest.mark.servers
@pytest.mark.release
def test_a_quick_run_measures_several_workers(tmp_path: Path) -> None:
    require("Prosody", prosody.installed())
    require("PostgreSQL", postgres.installed())
    done = benchmarks("--only", "workers", "--server", "prosody", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    workers = json.loads((tmp_path / "figures.json").read_text())["workers"]
    assert list(map(len, workers["batch_us"])) == [1, 1]
    assert set(workers["rounds"]) == set(LOADS)
    assert all(value > 0 for [round_] in workers["rounds"].values() for value in round_.values())
    assert [hold["name"] for hold in workers["holds"]][2:] == [
        "a new connection",
        "a new connection, with 5,000 rows of another worker",
    ]
    for target in workers["targets"]:
        assert f"{'✓' if target['is_reached'] else '✗'} {target['name']}" in done.stdout


def test_workers_are_compared_within_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = [Hold("a new connection", 100.0, 90.0, 40.0)]
    pairs = [(100, 110, 10, 18), (300, 300, 5, 8), (50, 60, 10, 17)]
    one = [Round(answers, cpu_us, 1, 1, 1, 1) for cpu_us, _, answers, _ in pairs]
    two = [Round(answers, cpu_us, 1, 1, 1, 1) for _, cpu_us, _, answers in pairs]
    figures = WorkersFigures({ONE: one, TWO: one, TWO_FULL: two}, ([200, 400, 300], [250, 500, 420]), holds=holds)
    for cores, answers in ((2, []), (8, [(1.7, True)])):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        values = [(target.value, target.is_reached) for target in worker_targets(figures)]
        assert values == [(1.1, True), (100, True), (40.0, True), *answers]
        assert ("--server ejabberd" in "".join(worker_lines(figures))) is not bool(answers)


@pytest.mark.release
def test_without_a_server_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    done = benchmarks(env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "prosody is not installed; `make servers` enables this measurement" in done.stderr
    assert done.stdout == ""


@pytest.mark.servers
@pytest.mark.release
def test_the_answers_beside_an_agent_in_a_platform_of_its_own_are_measured() -> None:
    require("Prosody", prosody.installed())
    command = [sys.executable, "-m", "benchmarks.isolation", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = {line[:36].rstrip(): [float(value) for value in line[36:].split()] for line in done.stdout.splitlines()[1:]}
    assert list(figures) == [isolation.QUIET, *isolation.WAYS.values()]
    assert all(0 < p50 <= p99 and ratio > 0 for p50, p99, ratio in figures.values())


@pytest.mark.release
def test_the_blocks_by_bodies_are_measured() -> None:
    command = (sys.executable, "-m", "benchmarks.bodies", "openai")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(openai +[\w, ]+ +[\d.]+ ms\n){8}", done.stdout), done.stdout
