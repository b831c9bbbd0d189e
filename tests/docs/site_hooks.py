"""Hooks of the documentation site: pages that do not exist yet, and links that leave the site.

The navigation of `mkdocs.yml` is complete. A page in it that does not exist is skipped, and a link to it becomes plain text.
Pages that it does not list come last, under "More". Once all pages exist, only the links that leave the site need a hook.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\(([^()\s#:]+)(#[^()\s]*)?\)")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def listed_pages(nav: list[Any]) -> list[str]:
    """Return the pages of a navigation, in their order."""
    pages: list[str] = []
    for item in nav:
        for value in item.values() if isinstance(item, dict) else (item,):
            pages += listed_pages(value) if isinstance(value, list) else [value]
    return pages


def existing_nav(nav: list[Any], docs: Path) -> list[Any]:
    """Return a navigation without the pages that do not exist, and without empty sections."""
    found: list[Any] = []
    for item in nav:
        title, value = next(iter(item.items())) if isinstance(item, dict) else (None, item)
        if isinstance(value, list):
            value = existing_nav(value, docs)
        elif not (docs / value).is_file():
            continue
        if value:
            found.append(value if title is None else {title: value})
    return found


def on_config(config: Any) -> Any:
    """Fit the navigation to the pages that exist."""
    docs = Path(config["docs_dir"])
    listed = set(listed_pages(config["nav"]))
    config["extra"]["planned_pages"] = sorted(page for page in listed if not (docs / page).is_file())
    more = sorted(page for page in (str(path.relative_to(docs)) for path in docs.rglob("*.md")) if page not in listed)
    config["nav"] = existing_nav(config["nav"], docs) + ([{"More": more}] if more else [])
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to planned pages, and to files outside of the site, into plain text."""
    docs, planned = Path(config["docs_dir"]), set(config["extra"]["planned_pages"])
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if target in planned or (target.startswith("../") and (docs / target).exists()):
            return link[1]
        return link[0]

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])
