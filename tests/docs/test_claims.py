"""Each sentence with "no", "not" or the like, on the pages of answers and limits, has a test or a section that shows it.

The list is `claims.yaml`: by page, section and sentence. Its proof is a test (`tests/….py::name`), or a section of another
page (`docs/….md#anchor`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import cli_reference, prose
from tests.docs.pages import DOCS, ROOT, check_reference

CLAIMS: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8")
)
ABSENT = {
    "a database besides SQLite and PostgreSQL": r"mysql|mariadb|oracle",
    "a handover to a person": r"handover|handoff|hand-over",
    "a way to the server besides TCP": r"websocket|bosh",
    "an evaluation of answers": r"evaluat|\bevals?\b",
    "another chat network": r"whatsapp|slack|discord|telegram|matrix|transports?\.jid",
    "encryption from end to end": r"omemo|openpgp",
    "money": r"dollar|price|\bcurrency|cost",
    "the import of conversations": r"(conversations?|sessions?|history)\W+import",
    "voice and video": r"jingle|voice_?call|video",
}
"""What the pages say is absent, and the names that it would have among commands, settings, extras or modules."""
_NEGATION = re.compile(r"\b(no|not|nothing|none|neither|never|cannot|only|untested)\b", re.I)
_HEADING = re.compile(r"^##+ (.+?)(?: \{ #(\S+) \})?$", re.M)
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def read_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a page with their headings. The part before the first one has none."""
    text = _FENCE.sub("", text)
    heading, start = "", 0
    for found in _HEADING.finditer(text):
        yield heading, text[start : found.start()]
        heading, start = found[1], found.end()
    yield heading, text[start:]


def read_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a part, without marks and the targets of links, and with their code."""
    for passage in prose.read_markdown(text):
        code = re.findall(r"`[^`]*`", passage.text)
        for sentence in prose.sentences(passage.text):
            while "`code`" in sentence:
                sentence = sentence.replace("`code`", f"\0{code.pop(0)[1:-1]}\0", 1)
            yield sentence.replace("\0", "`").replace("**", "").strip("* ")


def read_claims(text: str) -> set[tuple[str, str]]:
    """Return the sentences of a page with a negation, each with its heading."""
    return {
        (heading, sentence)
        for heading, part in read_sections(text)
        for sentence in read_sentences(part)
        if _NEGATION.search(re.sub(r"`[^`]*`", "", sentence))
    }


def read_anchors(text: str) -> set[str]:
    """Return the anchors of the sections of a page."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {anchor or re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading, anchor in headings}


def check_proof(page: str, proof: str) -> None:
    """Raise AssertionError if a test or a section does not exist."""
    if "::" in proof:
        check_reference(proof)
        return
    path, _, anchor = proof.partition("#")
    assert path != page, "a page does not show what it says itself"
    assert anchor in read_anchors((ROOT / path).read_text(encoding="utf-8")), f"{path} has no section {anchor!r}"


@pytest.mark.parametrize("page", CLAIMS)
def test_every_negative_sentence_of_a_page_is_in_the_list(page: str) -> None:
    listed = {(heading, sentence) for heading, sentences in CLAIMS[page].items() for sentence in sentences}
    said = read_claims((ROOT / page).read_text(encoding="utf-8"))
    assert (said - listed, listed - said) == (set(), set())


@pytest.mark.parametrize("page", CLAIMS)
def test_every_claim_names_a_test_or_a_section_that_exists(page: str) -> None:
    for sentences in CLAIMS[page].values():
        for proof in sentences.values():
            check_proof(page, proof)


@pytest.mark.parametrize("absent", ABSENT)
def test_nothing_is_named_after_what_is_said_to_be_absent(absent: str) -> None:
    settings = re.findall(r"^##+ `(\S+)`", (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8"), re.M)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "spade_coreason").rglob("*.py")]
    names = [*settings, *extras, *modules, *(name for name, _ in cli_reference.commands())]
    assert len(names) > 500
    assert [name for name in names if re.search(ABSENT[absent], name)] == []


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("# Page\n\nIt has no port. It has `a.not`.\n", {("", "It has no port.")}),
        (
            "## One\n\nYes.\n\n- **No [voice](x.md).** Files `a` do not `b`.\n",
            {("One", "No voice."), ("One", "Files `a` do not `b`.")},
        ),
        ("## One\n\n```text\nIt is not read.\n## Two\n```\n\n| a | not b |\n|---|---|\n", {("One", "not b")}),
    ],
)
def test_the_negative_sentences_of_a_page_are_read_with_their_headings(text: str, claims: Any) -> None:
    assert read_claims(text) == claims


@pytest.mark.parametrize(
    "proof",
    [
        "tests/docs/test_claims.py::test_that_is_not_there",
        "docs/how-to/workers.md#on-nothing",
        "docs/explanation/limits.md#encryption",
    ],
)
def test_a_proof_that_does_not_exist_or_is_the_page_itself_is_an_error(proof: str) -> None:
    with pytest.raises(AssertionError):
        check_proof("docs/explanation/limits.md", proof)
