"""The blocks of the README run, each make target exists, and its sentences are short."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.pages import Page, PageRun, read_page
from tests.docs.setups import own_prosody
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = read_page(ROOT / "README.md")
MAX_LINES = 150
MAX_WORDS = 35


def split_at_own_server() -> tuple[Page, Page]:
    """Return the README as two pages: what runs on a local server, and what runs on a server of one's own."""
    first_line = TEXT.partition("\n## Your own server\n")[0].count("\n") + 1
    before = tuple(block for block in PAGE.blocks if block.line < first_line)
    after = tuple(block for block in PAGE.blocks if block.line > first_line)
    assert before
    assert after
    return replace(PAGE, blocks=before), replace(PAGE, blocks=after)


@pytest.mark.servers
@pytest.mark.timeout(600)
def test_every_block_runs(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    project = tmp_path / "project"
    project.mkdir()
    local, own = split_at_own_server()
    PageRun(local, project).run()
    with own_prosody(tmp_path / "server", "echo", "weather") as environment:
        PageRun(own, project, environment).run()


@pytest.mark.servers
async def test_people_ask_the_agents_of_the_configuration_with_their_own_client(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    files = [block for block in PAGE.blocks if block.title in ("weather.py", "platform.yaml")]
    commands = [block for block in PAGE.blocks if block.language == "console" and "spade-coreason up" in block.text]
    assert (len(files), len(commands)) == (2, 1)
    with prosody_server.prosody(tmp_path / "server", other_domain="example.org") as server:
        environment = {
            "SPADE_COREASON_SERVER__HOST": server.host,
            "SPADE_COREASON_SERVER__PORT": str(server.port),
            "SPADE_COREASON_SERVER__TLS__CA_FILE": str(server.ca_file),
        }
        for name in ("echo", "weather"):
            _, environment[f"{name.upper()}_PASSWORD"] = await server.account(name, domain="example.org")
        account = await server.account(domain="example.org")
        run = PageRun(replace(PAGE, blocks=(*files, *commands)), tmp_path, environment)
        with run.running():
            async with StockClient(*account, server) as client:
                assert await client.ask("Berlin", "weather@example.org") == "It is sunny in *Berlin*."
                assert await client.ask("hello", "echo@example.org") == "hello"


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
