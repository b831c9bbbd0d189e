"""The reference lists the public names, and a type checker accepts the examples of README, docs, examples/ and `init`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import spade_coreason
from spade_coreason import AgentTester, Response, Session, Stream
from spade_coreason.cli.agent_names import derive_name
from spade_coreason.cli.scaffold import build_files
from tests.docs.pages import read_page

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = (ROOT / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
MYPY_TIMEOUT_S = 240
UNREAD_PACKAGES = ("alembic", "cryptography", "numpy", "prompt_toolkit", "rich", "slixmpp", "sqlalchemy")
"""What the package itself uses, and no example does. Half of the time would go into reading these."""
MYPY_CONFIG = f"""\
[mypy]
strict = True
follow_imports = silent
[mypy-spade.*,langgraph.*]
ignore_missing_imports = True
[mypy-{",".join(f"{package}.*" for package in UNREAD_PACKAGES)}]
follow_imports = skip
"""
"""The package counts as installed: errors in it are not those of an example. SPADE publishes no types."""


def read_examples(document: Path) -> list[tuple[str, str]]:
    """Return the Python files of a document, each with its name, in their order. Parts of other files are left out."""
    examples = []
    for block in read_page(document).blocks:
        if block.language != "python" or block.rule == "from":
            continue
        named = re.match(r"# (\w+\.py)\n", block.text)
        name = block.title or (named and named[1])
        assert name, f"{document.name}:{block.line}: an example has no name of a file"
        examples.append((name, block.text))
    return examples


def write_examples(directory: Path) -> list[str]:
    """Write the examples of all documents, and return their names. Those of one document import each other.

    Documents have files of the same names, so each name and each import of it begins with the number of the document.
    """
    written: list[str] = []
    for number, document in enumerate(DOCUMENTS):
        examples = read_examples(document)
        modules = "|".join({Path(name).stem for name, _ in examples})
        own_import = re.compile(rf"^(\s*(?:from|import)) ({modules})\b", re.M)
        for name, text in reversed(examples):  # others import the last version of a file
            stem = f"page{number}_{Path(name).stem}"
            path = directory / f"{stem}.py"
            if path.exists():
                path = directory / f"{stem}_{len(written)}.py"
            path.write_text(own_import.sub(rf"\1 page{number}_\2", text) if modules else text, encoding="utf-8")
            written.append(path.name)
    return written


def names_in_tables(text: str) -> list[str]:
    """Return the names in the first column of the tables."""
    rows = re.findall(r"^\| (\[?`.*?) \|", text, re.M)
    return [name for row in rows for name in re.findall(r"`(\w+)", row)]


def listed_names(module: str) -> set[str]:
    """Return the names that the reference lists for one of the other public modules."""
    text = re.search(rf"`spade_coreason\.{module}` has(.*?)(?=\n-? ?`spade_coreason|\Z)", REFERENCE, re.S)
    assert text is not None
    return set(re.findall(r"`(\w+)`", text[1]))


def test_the_reference_lists_each_public_name_of_the_root_once() -> None:
    introduction = REFERENCE.partition("\n## ")[0]
    assert sorted(names_in_tables(introduction)) == sorted(spade_coreason.__all__)
    described = re.findall(r"^::: spade_coreason\.(\w+)$", REFERENCE, re.M)
    assert sorted(described) == sorted(spade_coreason.__all__)


def test_the_root_has_few_names() -> None:
    assert len(spade_coreason.__all__) <= 43


@pytest.mark.parametrize(("module", "has_further_names"), [("contracts", False), ("testing", False), ("llm", True)])
def test_the_reference_lists_the_names_of_the_other_public_modules(module: str, has_further_names: bool) -> None:
    public, listed = set(import_module(f"spade_coreason.{module}").__all__), listed_names(module)
    assert listed <= public
    assert has_further_names or listed == public


@pytest.mark.parametrize(("title", "protocol"), [("`session`", Session), ("`response`", Response), ("stream", Stream)])
def test_the_reference_lists_each_method_for_authors(title: str, protocol: type) -> None:
    table = REFERENCE.partition(f"| {title} | |\n")[2].partition("\n\n")[0]
    assert set(names_in_tables(table)) == {name for name in dir(protocol) if not name.startswith("_")}


def test_every_error_is_named_an_error() -> None:
    for path in (ROOT / "spade_coreason").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                if any(base.endswith(("Error", "Exception")) and base != "BaseException" for base in bases):
                    assert node.name.endswith("Error"), f"{path}: {node.name}"


async def test_the_documented_oven_uses_what_is_added_to_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [(_, text)] = read_examples(ROOT / "docs" / "reference" / "python-api.md")
    (tmp_path / "oven.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        async with AgentTester(import_module("oven").Oven) as t:
            assert "It is done." in (await t.ask("bread")).text
            assert (await t.ask("enough")).text == ""
            assert [record.state for record in await t.conversations()] == ["completed"]
    finally:
        sys.modules.pop("oven", None)


@pytest.mark.release
@pytest.mark.timeout(MYPY_TIMEOUT_S + 60)
def test_a_strict_type_checker_accepts_every_example(tmp_path: Path) -> None:
    names = write_examples(tmp_path)
    assert len(names) == len(set(names)) >= 10
    for path in ROOT.glob("examples/*/*.py"):
        assert path.name not in names
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        names.append(path.name)
    projects = build_files(derive_name("forecaster")), build_files(derive_name("adviser"), uses_model=True)
    for files in projects:  # `spade-coreason init`
        for file, text in files.items():
            if file.endswith(".py"):
                (tmp_path / Path(file).name).write_text(text, encoding="utf-8")
                names.append(Path(file).name)
    imported = " ".join(
        re.findall(r"^ *(?:from|import) .*", "\n".join((tmp_path / name).read_text("utf-8") for name in names), re.M)
    )
    assert not set(re.findall(r"\w+", imported)) & set(UNREAD_PACKAGES)
    (tmp_path / "mypy.ini").write_text(MYPY_CONFIG, encoding="utf-8")
    arguments = ["--config-file", "mypy.ini", "--cache-dir", str(tmp_path / "cache"), *names]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=MYPY_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
