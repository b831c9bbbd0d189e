"""Hooks of the documentation site: links that leave the site, and the order of search results."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\(([^()\s#:]+)(#[^()\s]*)?\)")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_SEARCH_BOOSTS = {"questions.md": 8, "tutorial": 3, "how-to": 4, "explanation": 2, "reference/python-api.md": 0.5}
"""The weight of a page or folder in search results, 1 by default: guides come before the long tables of the reference."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files outside of the site into plain text, and set the weight of the page in the search."""
    docs, source = Path(config["docs_dir"]), page.file.src_uri
    folder = posixpath.dirname(source)
    page.meta["search"] = {"boost": _SEARCH_BOOSTS.get(source, _SEARCH_BOOSTS.get(folder, 1))}

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if target.startswith("../") and (docs / target).exists() else link[0]

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])
