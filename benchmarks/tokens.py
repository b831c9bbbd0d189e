"""Count the tokens of the package, without comments and docstrings: `python -m benchmarks.tokens [COMMIT]`."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "spade_coreason"
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count_tokens(source: str) -> int:
    """Return the number of tokens of a module that are neither layout nor comment nor a text that stands alone.

    An f-string is one token, as before Python 3.12.
    """
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    texts = {node.lineno for node in statements if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)}
    count = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_END":
            depth -= 1
        elif not depth and token.type not in _LAYOUT and not (kind == "STRING" and token.start[0] in texts):
            count += 1
        if kind == "FSTRING_START":
            depth += 1
    return count


def count_package() -> int:
    """Return the tokens of the package as it is."""
    return _count(path.read_text(encoding="utf-8") for path in (ROOT / PACKAGE).rglob("*.py"))


def count_commit(commit: str) -> int:
    """Return the tokens of the package in a commit."""
    archive = subprocess.run(["git", "archive", commit, PACKAGE], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        modules = [file for member in files if member.name.endswith(".py") and (file := files.extractfile(member))]
        return _count(module.read().decode() for module in modules)


def _count(sources: Iterable[str]) -> int:
    return sum(map(count_tokens, sources))


if __name__ == "__main__":
    now = count_package()
    print(f"{now:,} tokens")
    for name in sys.argv[1:]:
        then = count_commit(name)
        print(f"{then:,} tokens in {name}: {(now - then) / then:+.1%} since then")
