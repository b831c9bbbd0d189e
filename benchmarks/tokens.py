"""Count the tokens of the package, without comments and docstrings: `python -m benchmarks.tokens [COMMIT]`.

A module of Python has its tokens, and a page, a style sheet and a script have their words and marks. A string of more than 200
characters counts by its words, so that code in strings is not free. A list of short strings is not found out.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "spade_coreason"
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_LONG_STRING = 200
_WORD = re.compile(r"\w+")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_TEXT = r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)"""
# A text is found first, because it may have what looks like a comment. So may a link, and a comment of a line follows a space.
_COMMENTS = {
    ".css": re.compile(rf"{_TEXT}|/\*.*?\*/", re.DOTALL),
    ".html": re.compile(r"()<!--.*?-->|\{#.*?#\}", re.DOTALL),
    ".js": re.compile(rf"{_TEXT}|/\*.*?\*/|(?<!\S)//[^\n]*", re.DOTALL),
}
_SUFFIXES = (".py", *_COMMENTS)


def count_tokens(source: str) -> int:
    """Return the number of tokens of a module that are neither layout nor comment nor a text that stands alone.

    An f-string is one token, as before Python 3.12. Strings that stand side by side are one string.
    """
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    texts = {node.lineno for node in statements if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)}
    count, strings = 0, list[str]()
    for text, line, is_string in _split_module(source):
        if is_string and (strings or line not in texts):
            strings.append(text)
        elif not is_string:
            count += _count_string(strings) + bool(text)
            strings.clear()
    return count


def _split_module(source: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the text of each token, its first line, and True if it is a string. The end of a line has no text."""
    lines, start, depth = io.StringIO(source).readlines(), (0, 0), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_START":
            start = start if depth else token.start
            depth += 1
        elif kind == "FSTRING_END":
            depth -= 1
            if not depth:
                yield _cut(lines, start, token.end), start[0], True
        elif not depth and token.type not in _LAYOUT:
            yield "" if kind == "NEWLINE" else token.string, token.start[0], kind == "STRING"


def _cut(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    first, last = start[0] - 1, end[0] - 1
    if first == last:
        return lines[first][start[1] : end[1]]
    return lines[first][start[1] :] + "".join(lines[first + 1 : last]) + lines[last][: end[1]]


def _count_string(strings: list[str]) -> int:
    """Count the strings that stand side by side."""
    if sum(map(len, strings)) <= _LONG_STRING:
        return len(strings)
    return sum(len(_WORD.findall(text)) for text in strings)


def count_words(text: str, suffix: str) -> int:
    """Return the number of words and marks of a page, style sheet or script, without its comments."""
    return len(_WORD_OR_MARK.findall(_COMMENTS[suffix].sub(lambda found: found[1] or " ", text)))


def count_package() -> int:
    """Return the tokens of the package as it is."""
    files = (path for path in (ROOT / PACKAGE).rglob("*") if path.suffix in _SUFFIXES)
    return _count((path.suffix, path.read_text(encoding="utf-8")) for path in files)


def count_commit(commit: str) -> int:
    """Return the tokens of the package in a commit."""
    archive = subprocess.run(["git", "archive", commit, PACKAGE], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = [(suffix, member) for member in files if (suffix := Path(member.name).suffix) in _SUFFIXES]
        return _count((suffix, file.read().decode()) for suffix, member in members if (file := files.extractfile(member)))


def _count(files: Iterable[tuple[str, str]]) -> int:
    return sum(count_tokens(text) if suffix == ".py" else count_words(text, suffix) for suffix, text in files)


if __name__ == "__main__":
    now = count_package()
    print(f"{now:,} tokens")
    for name in sys.argv[1:]:
        then = count_commit(name)
        print(f"{then:,} tokens in {name}: {(now - then) / then:+.1%} since then")
