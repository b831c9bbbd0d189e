"""The program `spade-coreason` as a child process, and a platform that it runs."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.errors import check_errors, errors_in
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

COMMAND = [sys.executable, "-c", "from spade_coreason.cli import main; main()"]

ASYNCIO_PLUGIN_ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_asyncio.plugin"}
"""Variables for a pytest of a project's own: the other plugins take a second, and pytest itself would have to import them."""

# An agent for the difficult cases; the query selects one.
MOODY_AGENT_SOURCE = '''\
"""An agent with moods."""

import asyncio

from spade_coreason.exceptions import ApprovalDeniedError


class MoodyAgent:
    """Does what the question says."""

    def __init__(self, manifest, sleep_s: float = 3600.0) -> None:
        self.manifest = manifest
        self._sleep_s = sleep_s

    async def assist(self, request, session, response):
        match request.payload["query"]:
            case "fail":
                await response.error("I am in a bad mood")
            case "raise":
                raise ValueError("a secret of the person")
            case "sleep":
                await asyncio.sleep(self._sleep_s)
            case "wonder":
                await response.thought("Is it a long one? " * 9)
                await asyncio.sleep(self._sleep_s)
            case "yawn":
                stream = await response.create_stream()
                await stream.write("Well, ")
                await asyncio.sleep(self._sleep_s)
            case "escape":
                await response.markdown("\\x1b[31mred\\x1b[0m and \\x9b5m blinking")
            case "table":
                rows = [{"city": "Berlin", "sun": "yes"}]
                await response.data({"columns": ["city", "sun"], "rows": rows}, title="Weather", view_hint="TABLE")
            case "format":
                stream = await response.create_stream()
                await stream.write("It is **sun")
                await stream.write("ny**:\\n\\n- one\\n- `two`\\n\\n```py\\nif x:\\n")
                await stream.write("    y\\n```\\n\\n| a | b |\\n|---|")
                await stream.write("---|\\n| 1 | 2 |")
            case "lure":
                hidden = "\\x1b]8;;https://evil.example\\x07here\\x1b]8;;\\x07"
                await response.markdown(f"[your bank](https://evil.example) &#27;[31m {hidden}")
            case "choose":
                await response.ask("Which colour?", ["red", "light green"])
            case "hush":
                pass
            case "dawdle":
                await asyncio.sleep(0.7)
                await response.markdown("at last")
            case "drink":
                drink = await response.ask_person("Tea or coffee?", choices=["tea", "coffee"])
                await response.markdown(f"Here is your {drink.text}.")
            case "pay":
                await response.markdown("A moment.")
                try:
                    await response.markdown(await session.run_approved("pay", lambda amount: f"paid {amount}", 7))
                except ApprovalDeniedError as error:
                    await response.markdown(str(error))
            case "two":
                await response.markdown("one")
                stream = await response.create_stream()
                await stream.write("two ")
                await stream.write("three")
            case text:
                await response.markdown(f"You said {text} ({await session.get('last', 'nothing')} before).")
                await session.store("last", text)
'''


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without settings of the package and of language models, plus `extra`."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("SPADE_COREASON_", "OPENAI_"))}
    return {**clean, "NO_COLOR": "1", **(extra or {})}


def remove_times(log: str) -> str:
    """Return the lines of a log without the times that `up` writes where no person watches."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?=[a-z]+: )", "", log, flags=re.M)


def run_command(
    *arguments: str, cwd: Path, stdin: str = "", env: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return _run([*COMMAND, *arguments], cwd, stdin, clean_environment(env), timeout_s)


def run_pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a project to their end."""
    return _run([sys.executable, "-m", "pytest", "-q", *arguments], cwd, "", clean_environment(ASYNCIO_PLUGIN_ALONE), TIMEOUT_S)


def _run(
    command: list[str], cwd: Path, stdin: str, env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE
    with WarmProcess[str](command, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(stdin, timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_in_vain(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a command that gets no answer, and return it with its `--timeout`: longer ones where the login takes as long."""
    for timeout_s in ("1", "5", "25"):
        done = run_command(*arguments, "--timeout", timeout_s, cwd=cwd, env=env)
        if done.returncode != 4:
            break
    return done, timeout_s


@dataclass(eq=False)
class RunningCommand:
    """A command that runs until it is stopped. `output` is what it printed until it was ready."""

    process: subprocess.Popen[bytes]
    cwd: Path
    output: str = ""

    def run_command(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run another command beside it, in the same directory."""
        return run_command(*arguments, cwd=self.cwd, stdin=stdin)

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal; return the exit code and the rest of both outputs. The lines of the log have no times here."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out.decode(), remove_times(err.decode())

    def wait_for(self, pattern: str) -> None:
        """Read its output until it matches."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        while not re.search(pattern, self.output, re.MULTILINE):
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
            assert ready, f"nothing like {pattern} in {TIMEOUT_S} s; it said: {self.output}"
            text = os.read(self.process.stdout.fileno(), 65536).decode()
            assert text, f"it ended: {self.output} {self.process.stderr.read().decode()}"
            self.output += text


@contextmanager
def run_in_background(
    *arguments: str,
    cwd: Path,
    until: str,
    env: Mapping[str, str] | None = None,
    errors: Sequence[str] = (),
    may_log: Sequence[str] = (),
    is_cold: bool = False,
    program: Sequence[str] = COMMAND,
) -> Iterator[RunningCommand]:
    """Run a command in the background; yield it when it is ready. It is killed at the end, if it still runs.

    It has to log these `errors`, and no others except those that it `may_log`. With `is_cold`, Python starts anew for it.
    `program` is what runs it.
    """
    process = (subprocess.Popen if is_cold else WarmProcess[bytes])(
        [*program, *arguments],
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    command = RunningCommand(process, cwd)
    try:
        command.wait_for(until)
        yield command
    finally:
        if process.poll() is None:
            process.kill()
        _, log = process.communicate(timeout=TIMEOUT_S)
    check_errors(errors_in(remove_times(log.decode())), errors, may_log)


def write_project(directory: Path, mode: str) -> Path:
    """Write a project with the agents echo, notes and moody, and the account of a person besides the guest's."""
    (directory / "config").mkdir(parents=True)
    (directory / "moody.py").write_text(MOODY_AGENT_SOURCE)
    agents = [
        {"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"},
        {"jid": "notes@localhost", "agent": "spade_coreason.agents.notes:NotesAgent"},
        {"jid": "moody@localhost", "agent": "moody:MoodyAgent"},
    ]
    # Agents that sleep when the platform stops are not waited for.
    settings = {
        "server": {"mode": mode, "people": ["boss@localhost"]},
        "access": {"groups": {"bosses": ["boss@localhost"]}},
        "approvals": {"approvers": "bosses"},
        "agents": agents,
        "limits": {"grace_s": 0.2},
    }
    (directory / "config" / "platform.yaml").write_text(json.dumps(settings))
    return directory
