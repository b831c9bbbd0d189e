"""Without optional packages all of the package can be imported but what needs them, and that says what to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import optional_packages

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: required for name, required in PROJECT["optional-dependencies"].items() if name != "dev"}
FAILING = {
    "a2a": "agents.a2a.connection agents.a2a.exchange agents.a2a.transport agents.a2a.writer doors.a2a.card doors.a2a.handler"
    " doors.a2a.live_tasks doors.a2a.messages doors.a2a.progress doors.a2a.routes doors.a2a.stored_tasks",
    "embeddings": "memory.knowledge.vectors",
    "llm": "llm.model.http_transport memory.response_size",
    "mcp": "doors.mcp.calls doors.mcp.results doors.mcp.server doors.mcp.tools llm.mcp.connection llm.mcp.results"
    " llm.mcp.server llm.mcp.server_transports",
    "metrics": "app.metrics.collector app.metrics.server",
    "otel": "runtime.observability.opentelemetry",
    "postgres": "storage.backends.postgres storage.backends.postgres_connections",
    "web": "doors.authentication doors.connections doors.errors doors.files doors.guard doors.limits doors.mcp.routes"
    " doors.openai.conversations doors.openai.errors doors.openai.messages doors.openai.responses doors.openai.routes"
    " doors.page.routes doors.server doors.streaming doors.webhooks.events doors.webhooks.routes",
}
"""The modules that need an extra, by its name. What uses them names the extra first."""
EXTRA_OF_MODULE = {f"spade_coreason.{name}": extra for extra, names in FAILING.items() for name in names.split()}
NOT_USED = {"docs"}
"""Extras that no code of the package uses."""


def find_distributions(required: Iterable[str]) -> set[str]:
    """Return the installed distributions that requirements bring, with those that they require."""
    found: set[str] = set()
    pending = [(Requirement(text), "") for text in required]
    seen = set()
    while pending:
        requirement, extra_of_parent = pending.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra_of_parent}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                pending += [(Requirement(text), extra) for text in requires(name) or ()]
            except PackageNotFoundError:  # of `local`, which the tests do without
                continue
            found.add(name)
    return found


@cache
def find_owners() -> dict[str, set[str]]:
    """Return the distributions of each installed top-level module. It reads the lists of all files, which takes long."""
    return {module: set(map(canonicalize_name, names)) for module, names in packages_distributions().items()}


def find_modules(required: Iterable[str]) -> set[str]:
    """Return the top-level modules of what requirements bring, beyond what the package requires."""
    always, brought = find_distributions(PROJECT["dependencies"]), find_distributions(required)
    return {module for module, names in find_owners().items() if names & brought and not names & always}


def find_what_fails(python: str, directory: Path, *hidden: str) -> Any:
    """Run `tests/support/optional_packages.py` with a Python in an empty directory."""
    command = [python, "-I", optional_packages.__file__, *sorted(hidden)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_what_fails(found: Any) -> None:
    """Fail if more fails than what is listed, or with another error than the one that names the extra."""
    errors = {name: error for name, error in found["modules"].items() if error}
    assert errors.keys() == EXTRA_OF_MODULE.keys(), {name: errors.get(name) for name in errors.keys() ^ EXTRA_OF_MODULE.keys()}
    for use, error in found["uses"].items():
        hint = found["hints"][use.split()[0]]
        assert error is not None, use
        assert re.match(r"(Config|Store|Knowledge|CoReason)Error: ", error), (use, error)
        assert hint in error, (use, error)


def test_without_optional_packages_only_what_needs_them_fails_and_names_its_extra(tmp_path: Path) -> None:
    hidden = find_modules(text for required in EXTRAS.values() for text in required)
    found = find_what_fails(sys.executable, tmp_path, *hidden, "rfc3987_syntax")  # `tests/conftest.py` says why
    check_what_fails(found)
    assert {"spade_coreason.app.platform", "spade_coreason.agents.a2a.agent", "spade_coreason.cli.app"} <= found[
        "modules"
    ].keys()
    assert {use.split()[0] for use in found["uses"]} == EXTRAS.keys() - NOT_USED
    modules = {extra: find_modules(EXTRAS[extra]) for extra in FAILING}
    for name, extra in EXTRA_OF_MODULE.items():
        error = found["modules"][name]
        missing = re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)[\w.]*'", error)
        assert missing[1] in modules[extra] if missing else found["hints"][extra] in error, (name, error)
