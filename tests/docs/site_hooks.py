"""Hooks of the documentation site: pages of the examples, links that leave the site, and the results of the search.

The site links to the repository that it was built from: the environment variable REPOSITORY_URL, or the remote `origin` of git.
The README of each folder in `examples/` is a page of the site, with its picture.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\(([^()\s#:]+)(#[^()\s]*)?\)")
_CELL = re.compile(r"<(t[dh])\b[^>]*>.*?</\1>", re.S)
_CODE = re.compile(r"(<code>)([^<]{12,})(?=</code>)")
_PART_OF_A_NAME = re.compile(r"(?<=[_./:])(?=\w)|(?<=[a-z])(?=[A-Z])")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_SEARCH_BOOSTS = {
    "questions.md": 3,
    "tutorial": 3,
    "how-to": 4,
    "explanation": 2,
    "development": 0.5,
    "reference/python-api.md": 0.5,
}
"""The weight of a page or folder in search results, 1 by default: guides come before the long tables of the reference."""


def on_config(config: Any) -> Any:
    """Link to the repository."""
    config["repo_url"] = repository_url(os.environ.get("REPOSITORY_URL") or _origin())
    config["repo_name"] = "Repository"
    return config


def _origin() -> str:
    git = ["git", "-C", str(_ROOT), "remote", "get-url", "origin"]
    return subprocess.run(git, capture_output=True, text=True, check=False, timeout=30).stdout.strip()


def repository_url(remote: str) -> str | None:
    """Return the web address of a remote of git without its credentials, or None if it has none (a folder, or nothing)."""
    web = re.fullmatch(r"(https?://)(?:[^@/]*@)?(.+)", remote)
    shell = re.fullmatch(r"ssh://(?:[^@/]*@)?([^/:]+)(?::\d+)?/(.+)", remote) or re.fullmatch(r"[^@/:]+@([^/:]+):(.+)", remote)
    if web is not None:
        return (web[1] + web[2]).removesuffix(".git")
    return f"https://{shell[1]}/{shell[2]}".removesuffix(".git") if shell is not None else None


def example_pages() -> dict[str, Path]:
    """Return the README of each example, by its place in the site."""
    return {f"examples/{path.parent.name}/index.md": path for path in sorted(_ROOT.glob("examples/*/README.md"))}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and the pictures of the examples."""
    from mkdocs.structure.files import File  # other tests read `example_pages` without mkdocs

    for place, path in example_pages().items():
        # The docs are a folder of the repository, and the root of the site.
        content = path.read_text(encoding="utf-8").replace("](../../docs/", "](../../")
        files.append(File.generated(config, place, content=content))
        for picture in path.parent.glob("*.svg"):
            files.append(File.generated(config, f"{posixpath.dirname(place)}/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files outside of the site into plain text, and set the weight of the page in the search."""
    docs, source = Path(config["docs_dir"]), page.file.src_uri
    folder = posixpath.dirname(source)
    page.meta["search"] = {"boost": _SEARCH_BOOSTS.get(source, _SEARCH_BOOSTS.get(folder, 1))}

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        outside = docs / target if target.startswith("../") else _ROOT / target
        if target.startswith(("../", "examples/")) and outside.exists():
            return link[1]
        return link[0]

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Let long names in tables break between their parts. The search reads the page without that."""

    def mark(cell: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[1] + _PART_OF_A_NAME.sub("<wbr>", code[2]), cell[0])

    return _CELL.sub(mark, output)


def on_post_build(config: Any) -> None:
    """Let the search find each question by itself: as a page of its own, which is not a part of the page of questions."""
    index = Path(config["site_dir"], "search", "search_index.json")
    content = json.loads(index.read_text(encoding="utf-8"))
    entries = [entry for entry in content["docs"] if entry["location"] != "questions/"]
    for entry in entries:
        # Material takes the part before a "#" for the page. docs/assets/search.js goes from "?question=" to the question.
        entry["location"] = entry["location"].replace("questions/#", "questions/?question=")
    index.write_text(json.dumps({**content, "docs": entries}, ensure_ascii=False), encoding="utf-8")


on_post_build.mkdocs_priority = -100  # type: ignore[attr-defined]  # after the plugin that writes the index
