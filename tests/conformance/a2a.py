"""The A2A Technology Compatibility Kit against the A2A door."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.a2a_agent import KitAgent
from tests.conformance.page import write_section
from tests.support.a2a_door import serve_a2a
from tests.support.doors import KEY

VARIABLE = "A2A_TCK"
REMEDY = f"""The A2A kit is missing. Get it, with its packages, and name it:
  git clone -b 1.0-dev https://github.com/a2aproject/a2a-tck build/a2a-tck
  python3 -m venv build/a2a-tck/.venv && build/a2a-tck/.venv/bin/pip install -e build/a2a-tck
  {VARIABLE}=$PWD/build/a2a-tck make conformance-a2a"""
EXPECTED = "expected to fail"
"""The outcome of a failed test whose level is SHOULD: the kit tells pytest to expect that."""
EXCEPTIONS = Path(__file__).with_name("a2a-exceptions.toml")
MAX_EXCEPTIONS = 5
_HERE = Path(__file__).parent


async def run() -> None:
    """Run the kit on both bindings. Exit with 1 if a test of the level MUST fails that is no exception."""
    kit = find_kit()
    exceptions, optional = load_exceptions()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with serve_a2a(f"sqlite+aiosqlite:///{folder}/platform.db", KitAgent()) as server:
            output = await run_kit(kit, server.url, folder)
        if not (folder / "junit.xml").exists():
            raise SystemExit(output)
        results = read_results(folder / "junit.xml")
    failed = {name: text for name, (outcome, text) in results.items() if outcome in ("failed", EXPECTED)}
    unexpected = {name: text for name, text in failed.items() if name not in exceptions | optional}
    obsolete = sorted(set(exceptions | optional) - set(failed))
    commit = await find_commit(kit)
    write_section("a2a", make_lines(results, exceptions | optional, commit))
    print(output[-3000:])
    for name, text in unexpected.items():
        print(f"FAILED {name}\n  {text}")
    if obsolete:
        print(f"no longer needed in {EXCEPTIONS.name}: {', '.join(obsolete)}")
    if unexpected or obsolete:
        raise SystemExit(1)


def find_kit() -> Path:
    """Return the directory of the kit. Raise SystemExit with the remedy if it is missing."""
    kit = Path(os.environ.get(VARIABLE) or "/nonexistent")
    if not (kit / "tests" / "compatibility").is_dir() or not (kit / ".venv" / "bin" / "python").exists():
        raise SystemExit(REMEDY)
    return kit


def load_exceptions() -> tuple[dict[str, str], dict[str, str]]:
    """Return the tests of the levels MUST and SHOULD that may fail, each with its reason, and those of the level MAY."""
    tables = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    exceptions: dict[str, str] = tables["exceptions"]
    if len(exceptions) > MAX_EXCEPTIONS:
        raise SystemExit(f"{EXCEPTIONS.name} has more than {MAX_EXCEPTIONS} exceptions")
    return exceptions, tables["optional"]


async def run_kit(kit: Path, url: str, folder: Path) -> str:
    """Run the kit's tests at the address of an agent, and return its output."""
    command = [str(kit / ".venv" / "bin" / "python"), "-m", "pytest", "tests/compatibility/", f"--sut-host={url}", "--tb=short"]
    command += ["-q", "-p", "a2a_adapter", "-p", "no:cacheprovider", "--transport=jsonrpc,http_json"]
    command += [f"--junitxml={folder / 'junit.xml'}", f"--compatibility-report={folder / 'compatibility'}"]
    environment = {**os.environ, "A2A_KEY": KEY, "PYTHONPATH": str(_HERE), "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=kit, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode()


async def find_commit(kit: Path) -> str:
    """Return the commit of the kit."""
    process = await asyncio.create_subprocess_exec("git", "-C", kit, "rev-parse", "HEAD", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().strip()[:12]


def read_results(path: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test by its name, with the reason if it failed or was skipped.

    JUnit's form has both as skipped: the tests that did not run, and those that failed as the kit expects.
    """
    results = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
        problem = next(iter(case.findall("failure") + case.findall("error")), None)
        skipped = case.find("skipped")
        if problem is not None:
            results[name] = "failed", problem.attrib.get("message", "").splitlines()[0]
        elif skipped is not None:
            outcome = EXPECTED if skipped.attrib.get("type") == "pytest.xfail" else "skipped"
            results[name] = outcome, skipped.attrib.get("message", "")
        else:
            results[name] = "passed", ""
    return results


def make_lines(results: dict[str, tuple[str, str]], exceptions: dict[str, str], commit: str) -> list[str]:
    """Return the lines of the page."""
    counts = Counter(outcome for outcome, _ in results.values())
    reasons = Counter(text for outcome, text in results.values() if outcome == "skipped")
    lines = [
        f"The kit is `a2aproject/a2a-tck`, branch `1.0-dev`, commit `{commit}`. It sends no key, and different messages under",
        "one id: a plugin adds the key, and numbers the messages.",
        "",
        "| tests | passed | failed | failed, as the kit expects | skipped |",
        "|---|---|---|---|---|",
        f"| {len(results)} | {counts['passed']} | {counts['failed']} | {counts[EXPECTED]} | {counts['skipped']} |",
        "",
    ]
    lines += ["The failed tests, and why they fail:", "", "| test | reason |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in exceptions.items()]
    lines += ["", "Why tests are skipped, in the words of the kit:", "", "| tests | reason |", "|---|---|"]
    return lines + [f"| {count} | {reason} |" for reason, count in reasons.most_common()]


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
