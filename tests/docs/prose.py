"""Check the prose of the project: `python -m tests.docs.prose`, which is a part of `make check`.

The pages of the documentation and the examples, the docstrings and all other texts of the package, and the comments of the
configurations are read sentence by sentence:

- a page or module has at most 20 words a sentence on average, and fewer than 2 % of its sentences have more than 35
- README has no sentence of more than 35 words
- no sentence has a turn of `VAGUE`, and no docstring opens with a relative clause

Each finding is a line with its place.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]

MAX_MEAN_WORDS = 20
MAX_WORDS = 35
MAX_LONG_SHARE = 0.02
VAGUE = re.compile(
    r"\b(who(m)?ever|(some|no)body|what is (kept|said|stored|there)|(is|are) not to be|is no \w+ of|all the same|meanwhile"
    r"|in its place|gives? up|see to the|are the most|beside a (running|stopped)|(is|are|be) not there"
    r"|has nothing to say|all is well|leave it out|so many at most|the one who|mends?|plays? (one|it)|goes on where"
    r"|(has|have) to be)\b",
    re.I,
)
RELATIVE_OPENING = re.compile(r"(What|Whether|Who|Whom|Whose|Whoever|Where|How|Those|That|Of|As|It is (what|no|not))\b")

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_YAML_COMMENT = re.compile(r"(.*?)(?:^|(?<=\s))#(?: (.*)|$)")
_MIN_WORDS = 4
_NO_PROSE = re.compile(r"<[a-z/?]|xmlns|\\[dwsbS\\]|\(\?|^\^|\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|WHERE)\b")
"""Marks of XML, regular expressions and SQL."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of prose with the number of its first line."""

    line: int
    text: str
    is_docstring: bool = False
    counts: bool = True
    """False for a text whose length says nothing, such as the cell of a table."""


@dataclass
class Figures:
    """The figures of a file. The findings are lines for a person, each with its place."""

    mean: float = 0.0
    long: int = 0
    vague: int = 0
    openings: int = 0
    sentences: int = 0
    findings: list[str] = field(default_factory=list)

    def max_long(self, name: str) -> int:
        """Return the number of long sentences that the file may have."""
        return 0 if name == "README.md" else max(0, math.ceil(MAX_LONG_SHARE * self.sentences) - 1)

    def passes(self, name: str) -> bool:
        """Return True if the file breaks no rule."""
        return not (self.mean > MAX_MEAN_WORDS or self.long > self.max_long(name) or self.vague or self.openings)


def sentences(text: str) -> list[str]:
    """Split prose into sentences. A code span counts as one word, and of a link only its text."""
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    parts = re.split(r"(?<=[.!?])[\"')*_]*\s+", " ".join(text.split()))
    return [part for part in map(str.strip, parts) if part]


def read_markdown(text: str) -> Iterator[Passage]:
    """Yield the paragraphs and the points of lists of a Markdown text, and the cells of its tables."""
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    inside: list[str] = []
    for token in _MARKDOWN.parse(text):
        if token.nesting == 1:
            inside.append(token.type)
        elif token.nesting == -1:
            inside.pop()
        elif token.type == "inline" and "heading_open" not in inside and not token.content.startswith(":::"):
            yield Passage((token.map or [0])[0] + 1, token.content, counts="table_open" not in inside)


def read_python(text: str) -> Iterator[Passage]:
    """Yield the docstrings of a module, also those of attributes, and its other texts of at least four words."""
    yield from _read_node(ast.parse(text))


def _read_node(node: ast.AST) -> Iterator[Passage]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        for number, passage in enumerate(read_markdown(_dedent(node.value.value))):
            yield Passage(node.lineno + passage.line - 1, passage.text, number == 0, passage.counts)
    elif isinstance(node, ast.JoinedStr):  # a value in a text counts as one word
        yield from _read_text("".join(str(p.value) if isinstance(p, ast.Constant) else "`value`" for p in node.values), node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _read_text(node.value, node)
    elif not _is_list_of_words(node):
        for child in ast.iter_child_nodes(node):
            yield from _read_node(child)


def _dedent(text: str) -> str:
    first, newline, rest = text.partition("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest.splitlines() if line.strip()]
    return first + newline + "\n".join(line[min(indents, default=0) :] for line in rest.splitlines())


def _read_text(text: str, node: ast.expr) -> Iterator[Passage]:
    """Yield a text that is prose. The lines of a longer one are read one by one: they may be code, or a file to generate."""
    if _NO_PROSE.search(text):
        return
    lines = text.strip().split("\n")
    for line in lines:
        if len(line.split()) >= _MIN_WORDS:
            yield Passage(node.lineno, line, counts=len(lines) == 1)


def _is_list_of_words(node: ast.AST) -> bool:
    """Return True for `"…".split()`, a list of words."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "split"
        and isinstance(node.func.value, ast.Constant)
    )


def read_comments(text: str) -> Iterator[Passage]:
    """Yield the comments of a YAML file. Comments on lines of their own are Markdown."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        found = _YAML_COMMENT.match(line)
        if found is not None and not found[1].strip():
            block.append(found[2] or "")
            continue
        for passage in read_markdown("\n".join(block)):
            yield Passage(number - len(block) + passage.line - 1, passage.text)
        block = []
        if found is not None:
            yield Passage(number, found[2] or "")


_READERS = {".py": read_python, ".md": read_markdown, ".yaml": read_comments}


def check_file(path: Path, name: str) -> Figures:
    """Read a file and return its figures with its findings."""
    read = _READERS[path.suffix]
    figures, words = Figures(), 0
    for passage in read(path.read_text(encoding="utf-8")):
        place = f"{name}:{passage.line}"
        if passage.is_docstring and RELATIVE_OPENING.match(passage.text):
            figures.openings += 1
            figures.findings.append(f"{place}: opens with a relative clause: {_clip(passage.text)}")
        for sentence in sentences(passage.text):
            size = len(sentence.split())
            if passage.counts:
                words, figures.sentences = words + size, figures.sentences + 1
                if size > MAX_WORDS:
                    figures.long += 1
                    figures.findings.append(f"{place}: {size} words: {_clip(sentence)}")
            if turn := VAGUE.search(sentence):
                figures.vague += 1
                figures.findings.append(f"{place}: {turn[0]!r}: {_clip(sentence)}")
    figures.mean = round(words / figures.sentences, 1) if figures.sentences else 0.0
    return figures


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:99]}…"


def files(root: Path = ROOT) -> dict[str, Path]:
    """Return the files with prose, by their names."""
    patterns = ("*.md", "docs/**/*.md", "examples/*/README.md", "spade_coreason/**/*.py", "agents/*.py", "examples/*/*.py")
    configurations = ("config/*.yaml", "docker/*.yaml", "examples/*/platform.yaml")
    found = [path for pattern in (*patterns, *configurations) for path in root.glob(pattern)]
    return {str(path.relative_to(root)): path for path in sorted(found) if "spade_coreason/agents" not in str(path)}


def problems(name: str, figures: Figures) -> list[str]:
    """Return a line with the figures of a file that breaks a rule, followed by its findings."""
    if figures.passes(name):
        return []
    share = figures.long / figures.sentences if figures.sentences else 0
    head = f"{name}: {figures.mean} words a sentence, {share:.1%} with more than {MAX_WORDS}"
    return [f"{head}; at most {MAX_MEAN_WORDS} and less than {MAX_LONG_SHARE:.0%}", *figures.findings]


def main(arguments: list[str]) -> int:
    """Check all files, or those that are named. Return the exit code."""
    named = {str(Path(name)) for name in arguments}
    checked = {name: check_file(path, name) for name, path in files().items() if not named or name in named}
    found = [line for name, figures in checked.items() for line in problems(name, figures)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
