"""Pages of the documentation as programs: their files are written, and their commands run, in the order of the page.

The pages are those in docs/, and the README of each example. The page of an example runs beside a copy of all examples.

A fenced block means:

- with `title="NAME"`: a file with that name in the page's directory.
- `console`: commands after `$ `, each with its output below. `…` stands for any text, and alone on a line for any lines. They
  have to succeed, unless a line of the output begins with `error: `, `down: ` or `✗`, or says that a request
  waits for a person. A command that ends with ` &` runs until the end of the page, or until `$ kill $!` or `$ kill -9 $!`.
  Variables that it prints as `export NAME=VALUE` are set for the commands after it.
- `sh`: commands, a line each, that have to succeed.
- `yaml` without a title: a part of a configuration, which has to be valid.
- `json`: valid JSON.
- `text` and `mermaid`: nothing that could run.

A comment in the line before a block changes that:

- `<!-- from: FILE -->`: the block is a part of a file of the project, indented or not, and other tests run that file.
- `<!-- not run: TEST -->`: nothing is run. TEST is the test that shows the same: `tests/….py::name`.

A comment below the heading of a page, `<!-- setup: NAME ARGUMENTS -->`, names a function of `tests/docs/setups.py`.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spade_coreason import load_settings
from spade_coreason.exceptions import CoReasonError
from tests.support.program import ASYNCIO_PLUGIN_ALONE, COMMAND, clean_environment
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
PAGES = (*sorted(DOCS.rglob("*.md")), *sorted(EXAMPLES.glob("*/README.md")))
_FENCE = re.compile(
    r"^(?:<!-- (?P<rule>from|not run): (?P<reference>.*?) -->\n)?"
    r"(?P<indent> *)```(?P<language>\w+)(?P<attributes>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_SETUP = re.compile(r"^<!-- setup: (.*?) -->$", re.M)
_READY = re.compile(r"^Ready|(is|are) online|^export ", re.M)
_FAILURE = re.compile(r"^(error|down): |^✗|waits for a person's answer", re.M)
_NOTHING_TO_RUN = ("text", "mermaid")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    text: str
    line: int
    """The number of its first line in the page, from 1."""
    rule: str | None
    """`from`, `not run`, or None."""
    reference: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation."""

    path: Path
    blocks: tuple[Block, ...]
    setup: tuple[str, ...]
    """The name of the function that prepares the page, and its arguments; empty without one."""

    @property
    def name(self) -> str:
        """The path of the page, from the root of the project."""
        return str(self.path.relative_to(ROOT))


def read_page(path: Path) -> Page:
    """Read the blocks of a Markdown file."""
    content = path.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(content):
        title = re.search(r'title="(.*?)"', match["attributes"])
        line = content.count("\n", 0, match.start("language")) + 1
        text = textwrap.dedent(match["text"])
        blocks.append(Block(match["language"], title and title[1], text, line, match["rule"], match["reference"] or ""))
    setup = _SETUP.search(content)
    return Page(path, tuple(blocks), tuple(setup[1].split()) if setup else ())


@dataclass
class _Background:
    process: subprocess.Popen[bytes]
    output: str = ""

    def read_until_ready(self) -> None:
        assert self.process.stdout is not None
        while not _READY.search(self.output):
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
            assert ready, f"not ready after {TIMEOUT_S} s: {self.output}"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f"it ended: {self.output}"
            self.output += data.decode()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode


@dataclass
class PageRun:
    """The run of a page in a directory. `environment` is added to the environment of its commands."""

    page: Page
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _running: list[_Background] = field(default_factory=list)
    _exported: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if EXAMPLES in self.page.path.parents:
            shutil.copytree(EXAMPLES, self.directory / EXAMPLES.name, ignore=shutil.ignore_patterns("data", "__pycache__"))

    def run(self) -> None:
        """Write the files of the page and run its commands. AssertionError names the page and the line."""
        with self.running():
            pass

    @contextmanager
    def running(self) -> Iterator[None]:
        """Do the same as `run`; the commands in the background run until the end of the block."""
        here = self.directory
        try:
            for block in self.page.blocks:
                try:
                    here = self._run_block(block, here)
                except (AssertionError, ValueError, OSError, CoReasonError) as error:
                    raise AssertionError(f"{self.page.name}:{block.line}: {error}") from error
            yield
        finally:
            for background in self._running:
                background.stop()

    def _run_block(self, block: Block, here: Path) -> Path:
        if block.rule == "from":
            file_text = (ROOT / block.reference).read_text(encoding="utf-8")
            parts = (textwrap.indent(block.text, " " * depth) for depth in range(0, 13, 2))
            assert any(part in file_text for part in (block.text.strip(), *parts)), f"not in {block.reference}"
        elif block.rule == "not run":
            check_reference(block.reference)
        elif block.title is not None:
            file = here / block.title.removeprefix("/")  # a file of the system is written here, too
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command, output in read_console(block.text):
                here = self._run_command(command, output, here)
        elif block.language == "sh":
            for command in block.text.replace("\\\n", "").splitlines():
                if command.strip() and not command.lstrip().startswith("#"):
                    here = self._run_command(command, None, here)
        elif block.language == "yaml":
            self._check_configuration(block.text)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language in _NOTHING_TO_RUN, f"a block of {block.language} needs a title, or a comment before it"
        return here

    def _run_command(self, command: str, output: str | None, here: Path) -> Path:
        if command.startswith("cd "):
            return here / shlex.split(command)[1]
        if command.startswith(("kill $!", "kill %")):
            assert self._running.pop().stop() == 0
            return here
        if command.startswith(("kill -9 $!", "kill -9 %")):
            assert self._running.pop().stop(signal.SIGKILL) == -signal.SIGKILL
            return here
        if command.endswith(" &"):
            self._start(command.removesuffix(" &"), output, here)
            return here
        with self._popen(command, here) as process:
            try:
                printed = b"".join(filter(None, process.communicate(timeout=4 * TIMEOUT_S))).decode()
            except BaseException:
                process.kill()
                raise
        is_failure = output is not None and _FAILURE.search(output) is not None
        assert is_failure or process.returncode == 0, f"{command}: exit code {process.returncode}\n{printed}"
        if output is not None:
            check_output(command, output, printed)
        return here

    def _start(self, command: str, output: str | None, here: Path) -> None:
        background = _Background(self._popen(command, here, before="exec env ", start_new_session=True))
        self._running.append(background)
        background.read_until_ready()
        for line in re.findall(r"^export (.*)$", background.output, re.M):
            self._exported.update((name, value) for name, _, value in (word.partition("=") for word in shlex.split(line)))
        if output:
            check_output(command, f"{output}…", background.output)

    def _popen(self, command: str, here: Path, before: str = "", **options: Any) -> subprocess.Popen[bytes]:
        environment = self._environment()
        options |= {"cwd": here, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        if plain := read_plain_command(command, environment):
            variables, words = plain
            return WarmProcess[bytes](words, env=environment | variables, **options)
        shown, _, file = command.rpartition(" > ")
        if re.fullmatch(r"[\w.-]+", file) and (plain := read_plain_command(shown, environment)):
            variables, words = plain
            with (here / file).open("wb") as output:
                options |= {"stdout": output, "stderr": subprocess.PIPE}
                return WarmProcess[bytes](words, env=environment | variables, **options)
        return subprocess.Popen(["bash", "-c", f"{before}{command}"], env=environment, **options)

    def _environment(self) -> dict[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = self.directory / ".home"
        home.mkdir(exist_ok=True)
        own = {"PATH": programs, "HOME": str(home), "PYTHONUNBUFFERED": "1"}
        return clean_environment({**own, **ASYNCIO_PLUGIN_ALONE, **self.environment, **self._exported})

    def _check_configuration(self, text: str) -> None:
        values = yaml.safe_load(text)
        assert isinstance(values, dict), "no part of a configuration"
        file = self.directory / ".part.yaml"
        file.write_text(yaml.safe_dump({"agents": [], **values}), encoding="utf-8")
        secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "secret")
        load_settings(file, self.directory, {**secrets, **self._environment()})


def read_console(text: str) -> Iterator[tuple[str, str]]:
    """Return the commands of a console block, each with the output below it. A `\\` at the end of a line goes on."""
    for part in re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def read_plain_command(command: str, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]] | None:
    """Return the variables and the words of a command of Python that needs no shell; None for other commands."""
    match = re.match(r"((?:\w+=\S* )*)(spade-coreason|python -m pytest)(?= |$)", command)
    unquoted = re.sub(r"'[^'$]*'|\"[^\"$`\\]*\"", "", command)
    values = "".join(environment.get(name, "") for name in re.findall(r"\$(\w+)", command))
    if match is None or re.search(r"\s", values) or re.search(r"""['"\\`|&;<>(){}\[\]*?~#!]|\$\W""", unquoted + values):
        return None
    variables, arguments = (
        shlex.split(re.sub(r"\$(\w+)", lambda name: environment.get(name[1], ""), part))
        for part in (match[1], command[match.end() :])
    )
    program = COMMAND if match[2] == "spade-coreason" else [sys.executable, "-m", "pytest"]
    return dict(word.split("=", 1) for word in variables), [*program, *arguments]


def check_output(command: str, documented: str, output: str) -> None:
    """Check an output against the documented one, in which `…` stands for any text."""
    pattern = ""
    for line in documented.rstrip("\n").split("\n"):
        pattern += "(.*\n)*" if line == "…" else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ ]*\n"
    found = output if output.endswith("\n") or not output else f"{output}\n"
    if documented.strip():
        assert re.fullmatch(pattern, found), f"{command}: it printed\n{output}\nand the page says\n{documented}"


def check_reference(reference: str) -> None:
    """Check that a test exists: `tests/….py::name`."""
    file, _, name = reference.partition("::")
    assert name, f"{reference!r} names no test"
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"there is no test {reference}"
