"""The layers of the package: imports go downwards only, through the front of a package, and never in a circle."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from spade_coreason.domain.channel_kinds import CHANNEL_KINDS

ROOT = "spade_coreason"
PACKAGE = Path(__file__).parents[1] / ROOT
# A package imports from strictly lower layers only, and only what the front (`__init__`) of the other exports.
LAYERS = [
    {"_version", "exceptions", "concurrency", "contracts"},
    {"domain"},
    {"config", "storage"},
    {"memory"},
    {"operations"},
    {"runtime"},
    {"llm", "xmpp", "doors"},
    {"app", "testing"},
    {"cli"},
    {"__main__"},
]
LAYER_NUMBERS = {name: number for number, names in enumerate(LAYERS) for name in names}
VOCABULARY = {"contracts", "domain", "operations"}
"""Their modules may be imported past the front."""
PUBLIC_FRONTS = {"", "llm", "contracts"}
"""Their fronts are for users of the library: they may export what no other package uses."""


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "agents" not in path.relative_to(PACKAGE).parts]


def package_of(path: Path) -> str:
    """Return the package, or the module, directly under the root that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return ".".join((ROOT, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of the source of a module."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> frozenset[tuple[str, str]]:
    """Return the pairs of module and name that a module imports; the name is empty for `import module`."""
    package = (ROOT, *path.relative_to(PACKAGE).parts[:-1])
    found: set[tuple[str, str]] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {(module, alias.name) for alias in node.names}
    # A front that is imported as a whole: what is used of it is loaded later.
    for front in {name for module, name in found if module == ROOT and (PACKAGE / name / "__init__.pyi").exists()}:
        used = {
            node.attr
            for node in nodes(path)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == front
        }
        found = (found - {(ROOT, front)}) | {(f"{ROOT}.{front}", name) for name in used}
    return frozenset(found)


@cache
def exports(package: str) -> dict[str, str]:
    """Return the names that the front of a package exports, and the module that defines each."""
    stub = PACKAGE / package / "__init__.pyi"
    if not stub.exists():
        return {}
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    base = f"{ROOT}.{package}".rstrip(".")
    import_nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"{base}.{node.module}" for node in import_nodes for alias in node.names}


@cache
def internal_imports(path: Path) -> list[tuple[str, str, str]]:
    """Return a module's imports from other packages of ours: the package, the module, the name."""
    found = []
    for module, name in imports(path):
        parts = f"{module}.{name}".split(".")
        if parts[0] == ROOT and "agents" not in parts[1:2] and parts[1] != package_of(path):
            found.append((parts[1], module, name))
    return found


def test_there_are_at_most_twelve_packages_and_six_modules() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} - {"agents"}
    assert len(packages) <= 12
    assert len(list(PACKAGE.glob("*.py"))) <= 6
    assert len(LAYERS) <= 10


def test_a_package_has_at_most_twenty_modules() -> None:
    counts = Counter(path.parent for path in modules() if path.name != "__init__.py" and path.parent.name != "versions")
    assert {package: count for package, count in counts.items() if count > 20} == {}


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in modules()} - {"__init__"} == set(LAYER_NUMBERS)


def test_a_package_imports_from_lower_layers_only() -> None:
    assert [
        f"{path.relative_to(PACKAGE)} imports {module}.{name}"
        for path in modules()
        for found, module, name in internal_imports(path)
        if not (found == "_version" if package_of(path) == "__init__" else is_below(found, package_of(path)))
    ] == []


def is_below(found: str, package: str) -> bool:
    return LAYER_NUMBERS.get(found, len(LAYERS)) < LAYER_NUMBERS[package]


def test_a_package_imports_only_from_the_fronts_of_others() -> None:
    assert [
        f"{path.relative_to(PACKAGE)} imports {module}.{name}"
        for path in modules()
        for package, module, name in internal_imports(path)
        if package not in VOCABULARY and (PACKAGE / package).is_dir()
        if module != f"{ROOT}.{package}" or not (package == "cli" or name in exports(package))
    ] == []


@pytest.mark.parametrize("package", sorted({path.parent.name for path in PACKAGE.glob("*/__init__.pyi")} | {""}))
def test_a_front_exports_what_exists_and_others_use(package: str) -> None:
    front = importlib.import_module(f"{ROOT}.{package}".rstrip("."))
    assert exports(package)
    assert set(front.__all__) == set(exports(package))
    assert all(hasattr(front, name) for name in exports(package))
    if package not in PUBLIC_FRONTS:
        paths = [*modules(), *(PACKAGE / "agents").rglob("*.py")]  # ready-made agents are outside, and use fronts too
        used = {name for path in paths for found, _, name in internal_imports(path) if found == package}
        public = {name for name, module in exports("").items() if module == f"{ROOT}.{package}"}
        assert set(exports(package)) <= used | public


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {name_of(path): path for path in modules()}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for module, attribute in imports(path):
            package = module.removeprefix(ROOT).strip(".")
            target = exports(package).get(attribute) if module.startswith(ROOT) else None
            target = target or (f"{module}.{attribute}" if f"{module}.{attribute}" in names else module)
            if target in names and target != name:
                graph[name].add(target)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_module_takes_a_private_name_of_another_or_of_a_library() -> None:
    names = [(path, f"{module}.{name}") for path in modules() for module, name in imports(path)]
    assert [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, name in names
        if any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
        and "_version" not in name.split(".")
    ] == []


def test_every_required_library_is_imported() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[\[<>=~]", requirement)[0].strip() for requirement in project["dependencies"]}
    imported = {module.split(".")[0] for path in modules() for module, _ in imports(path)}
    distributions = packages_distributions()
    found = {name for module in imported for name in distributions.get(module, [])}
    assert required - {name.lower().replace("_", "-") for name in found} == set()


@pytest.mark.parametrize(
    ("libraries", "packages"),
    [({"spade", "slixmpp", "pyjabber"}, {"xmpp"}), ({"sqlalchemy", "alembic", "aiosqlite", "asyncpg"}, {"storage"})],
)
def test_a_library_is_known_in_one_package(libraries: set[str], packages: set[str]) -> None:
    for path in modules():
        if package_of(path) not in packages:
            assert not {module.split(".")[0] for module, _ in imports(path)} & libraries, path


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("spade_coreason", {"spade", "slixmpp", "sqlalchemy", "jsonschema", "aiohttp", "pydantic"}),
        ("spade_coreason.xmpp.client", {"spade", "sqlalchemy", "jsonschema", "aiohttp"}),  # `ask`, `chat`, AgentClient
        ("spade_coreason.xmpp.connection.probe", {"spade", "sqlalchemy", "jsonschema", "aiohttp"}),  # `check`
        ("spade_coreason.testing", {"spade", "slixmpp"}),
        ("spade_coreason.cli.app", {"spade", "slixmpp", "sqlalchemy", "jsonschema", "aiohttp"}),  # `--help`
        ("spade_coreason.cli.commands.up", {"prompt_toolkit"}),
        ("spade_coreason.cli.terminal.answer_writer, spade_coreason.cli.terminal.wrapping", {"prompt_toolkit"}),
        (
            "spade_coreason.operations.platform, spade_coreason.operations.rpc.client",
            {"spade", "slixmpp", "sqlalchemy", "jsonschema", "aiohttp"},
        ),  # `status`
    ],
)
def test_modules_that_are_not_needed_are_not_imported(module: str, unneeded: set[str]) -> None:
    program = f"import {module}, sys; print(*{unneeded} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_two_classes_share_a_name() -> None:
    names: dict[str, Path] = {}
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                other = names.setdefault(node.name.lstrip("_"), path)
                assert other == path, f"{node.name} is a class of {other} too"


@pytest.mark.parametrize("package", ["runtime", "memory", "domain"])
def test_no_name_of_a_channel_is_compared(package: str) -> None:
    """Whoever decides by a channel asks for a property of its kind."""
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in (PACKAGE / package).rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Compare | ast.match_case | ast.Match) and names_channel(node)
    ]
    assert not found


def names_channel(node: ast.AST) -> bool:
    """Return True if a comparison has a channel, or a kind, on one side and a text on another."""
    parts = list(ast.walk(node))
    words = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    asked = {part.attr for part in parts if isinstance(part, ast.Attribute)} | {
        part.id for part in parts if isinstance(part, ast.Name)
    }
    return bool(words) and bool(asked & {"channel", "kind", "channel_name"}) and bool(words & set(CHANNEL_KINDS))


@pytest.mark.parametrize(
    "comparison",
    [
        'incoming.channel == "program"',
        'queued.incoming.channel not in ("person", "room")',
        '"room" == channel',
        'incoming.kind.name != "spade"',
    ],
)
def test_the_search_finds_a_compared_channel(comparison: str) -> None:
    assert any(names_channel(node) for node in ast.walk(ast.parse(comparison)) if isinstance(node, ast.Compare))
