"""Markdown as a tree of plain values, of which the page makes elements: it never gets HTML.

A node is a text, or `[name, attributes, nodes]`. The names are those of `ELEMENTS`, and the page makes no others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from mimetypes import guess_type
from typing import Any, TypeAlias
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic_core import to_json

from ...domain.texts.json_text import read_table

Node: TypeAlias = "str | list[Any]"

ELEMENTS = frozenset(
    "p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a img br hr table thead tbody tr th td".split(" ")
)
_SCHEMES = frozenset({"https", "http", "mailto", "xmpp"})
_LONG_CHARACTERS, _MAX_CHARACTERS = 1_000, 100_000
_THREAD = ThreadPoolExecutor(1)
"""The thread of long texts: one is parsed at a time, so that others have the processor too."""
_MAX_TOKENS = _MAX_CELLS = 20_000
"""A short text may stand for a large table, because missing cells are filled up."""
_URL = re.compile(r"(https?://[^\s<>\"]*[^\s<>\".,:;!?'()\[\]])")
_FILE = re.compile(r"[\w-]{20,}/[\w%-][\w%.-]*", re.ASCII)
_PARSER = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 40}).enable(["table", "strikethrough"])


async def parse_markdown(text: str, files_url: str) -> list[Node]:
    """Return the blocks of a text. Pictures below `files_url` are shown, others are links: nothing loads from another host."""
    if len(text) > _MAX_CHARACTERS:
        return [["pre", {}, [text]]]
    if len(text) > _LONG_CHARACTERS:  # beside the event loop
        return await asyncio.get_running_loop().run_in_executor(_THREAD, _parse, text, files_url)
    return _parse(text, files_url)


def _parse(text: str, files_url: str) -> list[Node]:
    tokens = _PARSER.parse(text)
    return [["pre", {}, [text]]] if len(tokens) > _MAX_TOKENS else _build(tokens, files_url)


def _build(tokens: list[Token], files_url: str) -> list[Node]:
    root: list[Node] = []
    stack = [root]
    is_link = False
    for token in tokens:
        if token.type == "inline":
            stack[-1].extend(_build(token.children or [], files_url))
        elif token.hidden:
            continue
        elif token.nesting == 1:
            nodes: list[Node] = []
            stack[-1].append([token.tag, _find_attributes(token), nodes])
            stack.append(nodes)
            is_link = token.tag == "a"
        elif token.nesting == -1:
            stack.pop()
            is_link = is_link and token.tag != "a"
        elif token.type in ("fence", "code_block"):
            stack[-1].append(["pre", {}, [token.content.rstrip("\n")]])
        elif token.type == "image":
            stack[-1].append(show_picture(str(token.attrGet("src") or ""), token.content, files_url))
        elif token.type in ("softbreak", "hardbreak"):
            stack[-1].append(["br", {}, []])
        elif token.tag in ("code", "hr"):
            stack[-1].append([token.tag, {}, [token.content] if token.content else []])
        elif token.content:
            for number, text in enumerate([token.content] if is_link else _URL.split(token.content)):
                stack[-1] += [] if not text else [show_file(text, text, files_url) if number % 2 else text]
    return root


def _find_attributes(token: Token) -> dict[str, str]:
    if token.tag == "a":
        return _link(str(token.attrGet("href") or ""))
    if token.tag == "ol" and token.attrGet("start") is not None:
        return {"start": str(token.attrGet("start"))}
    style = str(token.attrGet("style") or "")
    return {"align": style.removeprefix("text-align:")} if style.startswith("text-align:") else {}


def _link(url: str) -> dict[str, str]:
    return {"href": url} if url.partition(":")[0].lower() in _SCHEMES else {}


def show_data(block: Mapping[str, Any]) -> list[Node]:
    """Return a block of data with its title: a table if its hint says so and it is one, else JSON."""
    data, hint = block["data"], block.get("view_hint")
    table = ([], list(data.items())) if hint == "KEY_VALUE" else read_table(data) if hint == "TABLE" else None
    shown: Node = ["pre", {}, [to_json(data, indent=2).decode()]]
    if table is not None and max(2, len(table[0])) * len(table[1]) <= _MAX_CELLS:
        shown = ["table", {}, [_row("th", table[0]), *(_row("td", cells) for cells in table[1])]]
    return [["p", {}, [["strong", {}, [block["title"]]]]], shown] if block.get("title") else [shown]


def _row(name: str, cells: Iterable[Any]) -> Node:
    return ["tr", {}, [[name, {}, [cell if isinstance(cell, str) else to_json(cell).decode()]] for cell in cells]]


def show_file(url: str, name: str, files_url: str, media_type: str = "") -> Node:
    """Return a picture if a file is one of this server, else a link."""
    # Of its name alone: Python 3.13 raises for an address that cannot be parsed.
    kind = media_type or guess_type(url.partition("?")[0].rpartition("/")[2])[0] or ""
    return show_picture(url, name or url, files_url if kind.startswith("image/") else "")


def show_picture(url: str, text: str, files_url: str) -> Node:
    """Return a picture of this server, or a link."""
    # Only a file: a picture must not fetch another path of this server for the person who looks.
    path = url.removeprefix(files_url) if files_url and url.startswith(files_url) else ""
    if _FILE.fullmatch(path) and unquote(path).rpartition("/")[2].strip("."):
        return ["img", {"src": f"/files/{path}", "alt": text}, []]
    return ["a", _link(url), [text or url]]
