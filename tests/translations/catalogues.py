"""The catalogues of texts for people: the messages of the code, and `python -m tests.translations.catalogues [LANGUAGE …]`.

The command brings the catalogues up to date with the code, and creates one for a new language. It adds messages without a
translation, and removes those that the code has no more. Without a language it does so for all catalogues.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import polib

from spade_coreason.domain.texts.translation import DIRECTORY
from spade_coreason.doors.page.routes import _WORDS

ROOT = Path(__file__).parents[2]
_PAGE = "spade_coreason/doors/page"
_FUNCTIONS = {"translate": 1, "N_": 1, "translate_plural": 2}
"""The functions that take messages, and the number of their first arguments that are messages."""
_PLURAL_FORMS = {"de": "nplurals=2; plural=(n != 1);", "es": "nplurals=2; plural=(n != 1);"}


def extract_messages(root: Path = ROOT) -> dict[str, polib.POEntry]:
    """Return the messages of the code by their English text, in the order of files and lines.

    The descriptions of the ready-made agents, the first lines of their classes' docstrings, are messages too. So are the texts
    in the files of the page in the browser.
    """
    entries: dict[str, polib.POEntry] = {}
    for folder in ("agents", "spade_coreason"):
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            if place.startswith("spade_coreason/agents/"):
                continue  # in a checkout a link to agents/
            for texts in _read_texts(path.read_text(encoding="utf-8"), folder == "agents"):
                _add(entries, texts, place)
    for path in sorted(path for path in (root / _PAGE).rglob("*") if path.suffix in (".html", ".js")):
        for _, text in _WORDS.findall(path.read_text(encoding="utf-8")):
            _add(entries, (text,), path.relative_to(root).as_posix())
    return entries


def _add(entries: dict[str, polib.POEntry], texts: tuple[str, ...], place: str) -> None:
    entry = entries.setdefault(texts[0], polib.POEntry(msgid=texts[0], msgid_plural="".join(texts[1:])))
    if (place, "") not in entry.occurrences:
        entry.occurrences.append((place, ""))


@cache
def _read_texts(source: str, has_agents: bool) -> list[tuple[str, ...]]:
    """Return the texts of a module in the order of their lines."""
    found = list(_messages_of(ast.parse(source), has_agents=has_agents))
    return [texts for _, texts in sorted(found, key=lambda item: item[0])]


def update_catalogue(path: Path, messages: dict[str, polib.POEntry]) -> polib.POFile:
    """Return the catalogue of a file, brought up to date with the messages of the code."""
    before = polib.pofile(str(path), encoding="utf-8") if path.exists() else polib.POFile()
    after = polib.POFile(wrapwidth=100)
    plural_forms = _PLURAL_FORMS.get(path.stem, "nplurals=2; plural=(n != 1);")
    after.metadata = before.metadata or {
        "Language": path.stem,
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": plural_forms,
    }
    known = {entry.msgid: entry for entry in before if not entry.obsolete}
    for message in messages.values():
        old = known.get(message.msgid)
        entry = polib.POEntry(msgid=message.msgid, occurrences=message.occurrences)
        if message.msgid == "1,000":
            entry.comment = "One thousand. What stands between the digits separates thousands in all numbers."
        if message.msgid_plural:
            entry.msgid_plural = message.msgid_plural
            entry.msgstr_plural = dict(old.msgstr_plural) if old is not None and old.msgstr_plural else {0: "", 1: ""}
        else:
            entry.msgstr = old.msgstr if old is not None else ""
        after.append(entry)
    return after


def _messages_of(tree: ast.AST, *, has_agents: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            arguments = node.args[: _FUNCTIONS[node.func.id]]
            texts = tuple(argument.value for argument in arguments if isinstance(argument, ast.Constant))
            if len(texts) == _FUNCTIONS[node.func.id] and all(isinstance(text, str) for text in texts):
                yield node.lineno, tuple(map(str, texts))
        elif (
            has_agents and isinstance(node, ast.ClassDef) and _is_agent(node) and (text := ast.get_docstring(node)) is not None
        ):
            yield node.lineno, (text.partition("\n")[0],)


def _is_agent(node: ast.ClassDef) -> bool:
    has_assist = any(isinstance(part, ast.AsyncFunctionDef) and part.name == "assist" for part in node.body)
    return has_assist or any(isinstance(base, ast.Name) and base.id.endswith("Agent") for base in node.bases)


def main(languages: list[str]) -> None:
    """Update the catalogues of some languages, by default of all that there are."""
    messages = extract_messages()
    for path in [DIRECTORY / f"{name}.po" for name in languages] or sorted(DIRECTORY.glob("*.po")):
        catalogue = update_catalogue(path, messages)
        catalogue.save(str(path))
        missing = len(catalogue.untranslated_entries())
        print(f"{path.relative_to(ROOT)}: {len(catalogue)} messages, {missing} without a translation")


if __name__ == "__main__":
    main(sys.argv[1:])
