"""The map of the rooms: import downwards only, and what may know SPADE, SQL or the settings."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "spade_coreason"
# The last column of each line is the highest floor; a room may import from its own and from lower ones.
FLOORS = [
    {
        "exceptions",
        "contracts",
        "names",
        "runfile",
        "status",
        "private_socket",
        "tracked",
        "current",
        "activity",
        "alarms",
        "slots",
        "pace",
        "notices",
        "collector",
        "access",
        "avatar",
        "addresses",
        "preferences",
        "devices",
        "words",
        "turns",
        "web_api",
        "passages",
        "documents",
        "nearness",
        "held",
        "values",
        "timings",
    },
    {"conversation", "pruning", "fields", "own_commands", "config", "modules", "authoring", "tokens", "summaries", "embedding"},
    {"codec", "stores", "loading", "files", "links"},
    {
        "session",
        "response",
        "streams",
        "lane",
        "lifecycle",
        "ends",
        "commands",
        "policy",
        "engine",
        "verdicts",
        "memories",
        "outbox",
        "obeying",
        "waiting_room",
        "workers",
        "feedback",
        "turn",
        "runner",
        "peers",
        "door",
        "forget",
        "export",
        "operators",
        "placing",
        "departures",
        "filing",
        "admissions",
        "retention",
        "knowledge",
        "librarian",
        "governance",
        "usage",
    },
    {"xmpp", "testing", "local_network", "llm"},
    {"service", "models"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "agents" not in path.parts and path.parent != PACKAGE.parent]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """What a module imports, as full names."""
    package = ("spade_coreason", *path.relative_to(PACKAGE).parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def test_every_room_is_on_the_map() -> None:
    rooms = {room_of(path) for path in modules()} - {"__init__", "agents"}
    assert rooms <= set(FLOOR)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_downwards_only(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "spade_coreason" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != room:
            assert FLOOR[parts[1]] <= FLOOR[room], f"{room} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_takes_a_private_name_of_another(path: Path) -> None:
    names = [name.split(".") for name in imports(path) if name.startswith("spade_coreason.")]
    assert not [".".join(parts) for parts in names if any(part.startswith("_") and not part.endswith("__") for part in parts)]


@pytest.mark.parametrize(
    ("libraries", "rooms"),
    [({"spade", "slixmpp", "pyjabber"}, {"xmpp"}), ({"sqlalchemy", "alembic", "aiosqlite", "asyncpg"}, {"stores"})],
)
def test_a_library_is_known_in_one_room(libraries: set[str], rooms: set[str]) -> None:
    for path in modules():
        if room_of(path) not in rooms:
            assert not {name.split(".")[0] for name in imports(path)} & libraries, path


@pytest.mark.parametrize(
    ("module", "is_not_needed"),
    [
        ("spade_coreason", {"spade", "slixmpp", "sqlalchemy", "jsonschema", "aiohttp"}),
        ("spade_coreason.xmpp.client", {"spade", "sqlalchemy", "jsonschema", "aiohttp"}),  # `ask`, `chat`, AgentClient
        ("spade_coreason.xmpp.probe", {"spade", "sqlalchemy", "jsonschema", "aiohttp"}),  # `check`
    ],
)
def test_what_is_not_needed_is_not_imported(module: str, is_not_needed: set[str]) -> None:
    program = f"import {module}, sys; print(*{is_not_needed} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
