"""CONTRIBUTING.md and the pages on the design name only paths that exist, and every package has its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_imports import LAYERS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spade_coreason"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "document",
    ["CONTRIBUTING.md", "docs/explanation/architecture.md", "docs/explanation/storage.md"],
)
def test_every_place_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text))
    assert named
    assert not [place for place in sorted(named) if not (PACKAGE / place).exists() and not (ROOT / place).exists()]


def test_what_is_left_out_of_the_tests_is_listed() -> None:
    listed = CONTRIBUTING.partition("Only before a release runs what has the mark `release`:")[2].partition("\n\nA run")[0]
    marked = {
        str(path.relative_to(ROOT))
        for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
        if re.search(r"pytest\.mark\.release|^(?!from ).*_in_releas[e]\b", path.read_text(encoding="utf-8"), re.M)
    }
    assert marked == set(re.findall(r"`(tests/[\w/]+\.py)`", listed))


def test_the_tree_has_a_line_for_every_package_and_no_other() -> None:
    tree = re.findall(r"^```\n(spade_coreason/\n.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)[0]
    places, above = set(), list[str]()
    for indent, name in re.findall(r"^( *)([\w.]+)/?(?= {2,}\S|$)", tree.replace("/\n", "\n"), re.MULTILINE):
        above = [*above[: len(indent) // 2], name]
        places.add("/".join(above))
    packages = {path.parent.relative_to(ROOT) for path in PACKAGE.rglob("__init__.py") if "agents" not in path.parts}
    modules = {path.relative_to(ROOT) for path in PACKAGE.glob("*.py")} - {PACKAGE.relative_to(ROOT) / "__main__.py"}
    listed = {place for place in places if place.startswith("spade_coreason/")}
    needed = {str(place) for place in packages | modules} - {"spade_coreason", "spade_coreason/_version.py"}
    assert needed - {"spade_coreason/storage/migrations/versions"} <= listed
    assert not [place for place in listed if not (ROOT / place).exists()]


def test_it_begins_with_where_things_are() -> None:
    assert re.findall(r"^## (.*)", CONTRIBUTING, re.MULTILINE)[:2] == ["Where things are", "Where a change is made"]


def test_the_chain_of_packages_is_that_of_the_imports() -> None:
    chain = re.findall(r"^    (_version .*(?:\n     .*)*)", CONTRIBUTING, re.MULTILINE)[0]
    assert [set(layer.split()) for layer in chain.split("←")] == LAYERS


def test_the_diagram_has_each_package_and_its_arrows_go_downwards() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    diagram = page.partition("```mermaid\n")[2].partition("```")[0]
    boxes = set(re.findall(r"<b>(\w+)</b>", diagram))
    layers = {name: number for number, names in enumerate(LAYERS) for name in names}
    assert boxes == layers.keys() - {"_version", "__main__"}
    arrows = re.findall(r"^ *([\w &]+) --> ([\w &]+)$", diagram, re.MULTILINE)
    assert arrows
    for upper, lower in arrows:
        highest = max(layers[name] for name in lower.split(" & "))
        assert all(layers[name] > highest for name in upper.split(" & ")), (upper, lower)


def test_the_glossary_fixes_the_words_of_the_project() -> None:
    words = """JID,bare JID,stanza,thread,conversation,episode,session,turn,interaction,request,reply,event,mailbox,inbox,outbox
    ,window,knowledge,interaction memory,operator,peer,channel"""
    fixed = re.findall(r"^\| \*\*(.+?)\*\* \| \S", GLOSSARY, re.MULTILINE)
    assert {word.strip() for word in words.split(",")} <= set(fixed)
    assert len(fixed) == len(set(fixed))


def test_every_claim_of_the_security_model_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "security-model.md").read_text(encoding="utf-8")
    claims = re.findall(r"^\| [^|]+\. \| (.+) \|$", page, re.MULTILINE)
    named = re.findall(r"^\| [^|]+\. \| `(test_\w+)` \|$", page, re.MULTILINE)
    assert len(claims) == len(named) > 30
    tests = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert not set(named) - tests
