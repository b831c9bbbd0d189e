"""The blocks of the README run, its promises have tests, each make target exists, and it is short."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.docs.pages import Page, PageRun, check_reference, read_page
from tests.docs.setups import web
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = read_page(ROOT / "README.md")
MAX_LINES = 130
MAX_LINKS = 12
MAX_WORDS = 35


def split_at_configuration() -> tuple[Page, Page]:
    """Return the README as two pages: the agent and its test, which need Python alone, and what runs on Prosody."""
    [number] = [number for number, block in enumerate(PAGE.blocks) if block.title == "shop.yaml"]
    [agent] = [block for block in PAGE.blocks if block.title == "shop.py"]
    return replace(PAGE, blocks=PAGE.blocks[:number]), replace(PAGE, blocks=(agent, *PAGE.blocks[number:]))


def test_the_agent_passes_its_test_without_a_server(tmp_path: Path) -> None:
    alone, _ = split_at_configuration()
    assert [block.title for block in alone.blocks] == ["shop.py", "test_shop.py", None]
    PageRun(alone, tmp_path).run()


@pytest.mark.servers
@pytest.mark.timeout(600)
def test_the_call_runs_once_when_it_is_approved_after_a_kill(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    _, on_prosody = split_at_configuration()
    commands = "".join(block.text for block in on_prosody.blocks if block.language == "console")
    assert commands.index("ask shop") < commands.index("kill -9") < commands.index("approvals approve")
    with web(tmp_path) as environment:
        PageRun(on_prosody, tmp_path, environment).run()


@pytest.mark.servers
async def test_fred_approves_in_his_own_client(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    _, on_prosody = split_at_configuration()
    files = tuple(block for block in on_prosody.blocks if block.title)
    start = replace(on_prosody.blocks[0], language="console", title=None, text="$ spade-coreason up -c shop.yaml &\n")
    page = replace(on_prosody, blocks=(*files, start))
    with web(tmp_path) as environment, PageRun(page, tmp_path, environment).running():
        run, passwords = (json.loads((tmp_path / "data" / name).read_text("utf-8")) for name in ("run.json", "people.json"))
        server = SimpleNamespace(host=run["host"], port=run["port"], ca_file=Path(run["ca_file"]))
        accounts = ((f"{name}@localhost", passwords[f"{name}@localhost"]) for name in ("ada", "fred"))
        ada, fred = (StockClient(*account, server) for account in accounts)
        async with ada, fred:
            ada.send("Can you refund order 7?", "shop@localhost")
            [code] = re.findall(r"/approve (\w+)", (await fred.answer())["body"])
            assert await fred.ask(f"approve {code}", "shop@localhost") == "Approved. It runs now."
            while "Order 7 is refunded." not in (await ada.answer())["body"]:
                pass  # what it does, and that it waits


def test_the_picture_shows_its_agent() -> None:
    [agent] = [block.text for block in PAGE.blocks if block.title == "shop.py"]
    assert (ROOT / "tests" / "docs" / "pictures" / "scenarios" / "approval" / "shop.py").read_text("utf-8") == agent
    [title, picture] = re.findall(r"^!\[(.*)\]\((.*)\)$", TEXT, re.M)[0]
    assert f"<title>{title}</title>" in (ROOT / picture).read_text(encoding="utf-8")


def test_it_has_few_links_and_each_leads_somewhere() -> None:
    before, _, rest = TEXT.partition("\n## When to take something else\n")
    after = rest.partition("\n## ")[2]
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)]*)\)", before + after)
    assert 0 < len(links) <= MAX_LINKS
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_each_promise_names_a_test_that_exists() -> None:
    promises = re.findall(r"^## What it promises.*?\n\n(.*?)\n\n", TEXT, re.M | re.S)[0].splitlines()
    named = [re.findall(r"`(tests/[^`]+)`\.$", promise) for promise in promises]
    assert [len(tests) for tests in named] == [1] * 4
    for [test] in named:
        check_reference(test)


def test_its_figures_are_those_of_the_pages() -> None:
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    [answers] = re.findall(r"([\d,]+) stored answers a second", TEXT)
    assert f"{answers} durable answers a second" in page
    [cpu] = re.findall(r"\[([\d.]+) times the CPU\]", TEXT)
    [measured] = re.findall(r"^\| hosted, Prosody \| [\d.]+ \| ([\d.]+) \|", page, re.M)
    assert f"{float(measured):.1f}" == cpu
    scale = (ROOT / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")
    [memory] = re.findall(r"^\| a worker with 8 agents, just started \| (\d+) MiB", scale, re.M)
    assert f"{round(int(memory), -1)} MiB of memory for eight agents" in TEXT


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES
    without_blocks = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
    prose = re.sub(r"^[|#].*$|^<!--.*-->$", "", without_blocks, flags=re.M)
    one_link_one_word = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", prose))
    paragraphs = re.split(r"\n\s*\n|^- ", one_link_one_word, flags=re.M)
    sentences = [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?:])\s+", paragraph)]
    assert not [sentence for sentence in sentences if len(sentence.split()) > MAX_WORDS]


def test_every_make_target_is_there() -> None:
    for path in ("README.md", "docs/index.md"):
        lines = [line for block in read_page(ROOT / path).blocks if block.language == "sh" for line in block.text.splitlines()]
        targets = [line for line in lines if line.startswith("make ")]
        assert targets
        for line in targets:
            done = subprocess.run(
                [*shlex.split(line, comments=True), "-n"], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr


def test_the_tests_run_by_a_part_of_what_a_submission_runs() -> None:
    commands = [
        line.split("#")[0].strip() for block in PAGE.blocks if block.language == "sh" for line in block.text.splitlines()
    ]
    assert "make test" in commands
    run = re.findall(r"^(?:\.ci/fresh )?make ([^<#\n]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
    targets = " ".join(run).split()
    assert {"check", "docs", "test-release", "test-servers", "bench-check"} <= set(targets)
    assert targets[-2:] == ["demo", "test"]  # the order of README: the tests pass beside the data of the demo


@pytest.mark.parametrize(
    ("python", "remedy"),
    [
        ("#!/bin/sh\nexit 1\n", "python3-venv is missing: apt-get install python3-venv"),
        (None, "PYTHON is missing: apt-get install python3 python3-venv"),
    ],
    ids=["without venv", "without Python"],
)
def test_a_missing_program_of_the_set_up_is_named_in_one_line(tmp_path: Path, python: str | None, remedy: str) -> None:
    program = tmp_path / "python"
    if python is not None:
        program.write_text(python)
        program.chmod(0o755)
    arguments = ["make", "--no-print-directory", "demo", f"PYTHON={program}", f"VENV={tmp_path}/venv"]
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines() == [remedy.replace("PYTHON", str(program))]
