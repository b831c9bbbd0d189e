"""What people and agents write is shown as a tree of harmless elements, whatever it is, and in whatever field it comes."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import httpx
import pytest
from hypothesis import given, strategies as st
from pydantic_core import to_json

from spade_coreason.domain.channel_kinds import PAGE_CHANNEL
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.page.markdown import ELEMENTS, parse_markdown, show_data, show_file
from tests.support.errors import ExpectedErrors
from tests.support.page import ADA, BOB, DESK, OpenFeed, RunningPage, Visitor, wish

URL = "http://127.0.0.1:8080/files/"
TOKEN = "t" * 43
_ATTRIBUTES = {"a": {"href"}, "img": {"src", "alt"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}}
_SRC = re.compile(r"/files/[\w-]{20,}/[^/?#\\]+", re.ASCII)
_SCHEMES = {"http", "https", "mailto", "xmpp"}

PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><use href='data:image/svg+xml,<svg/>'/></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<a href='javascript:alert(1)'>x</a>",
    "<base href='https://evil.example/'><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#9;script:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#x6A&#x61&#x76&#x61&#x73&#x63&#x72&#x69&#x70&#x74&#x3A;alert(1))",
    "[x](<\x01javascript:alert(1)>)",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](data:image/svg+xml,<svg onload=alert(1)>)",
    "[x](file:///etc/passwd) [x](blob:http://127.0.0.1/x) [x](intent://x#Intent;end) [x](//evil.example)",
    "<javascript:alert(1)> <data:text/html,x>",
    "![x](https://evil.example/track.png)",
    "![x](data:image/svg+xml;base64,PHN2Zy8+)",
    f"![x]({URL}../logout)",
    f"![x]({URL}{TOKEN}/../../logout)",
    f"![x]({URL}{TOKEN}/..%2f..%2flogout)",
    f"![x]({URL}{TOKEN}/a.png?next=/logout)",
    f"![x]({URL}{TOKEN}\\..\\..\\logout)",
    "![x](http://127.0.0.1:8080/logout) ![x](/logout) ![x](logout) ![x](//127.0.0.1:8080/logout)",
    f"![x](http://127.0.0.1:8080@evil.example/files/{TOKEN}/a.png)",
    f"![x]({URL.replace('/files', '.evil.example/files')}{TOKEN}/a.png)",
    f"![<img src=x>]({URL}{TOKEN}/a.png 'title\" onload=alert(1)')",
    "[https://bank.example](https://evil.example) [![x](https://evil.example/a.png)](javascript:alert(1))",
    "[https://bank.example/ https://evil.example/](https://evil.example)",
    "https://evil.example/\"onmouseover=alert(1) http://a'b https://x.example/<script>",
    f"[x]\n\n[x]: javascript:alert(1)\n[y]: {URL}../logout\n![y]",
    "```html\n<script>alert(1)</script>\n``` `<b>`",
    "```\nan unclosed fence <img src=x onerror=alert(1)>",
    "> " * 200 + "[x](javascript:alert(1))",
    "\n".join("  " * depth + "- a" for depth in range(120)),
    "*_" * 2000 + "x",
    "evil\u202egnp.exe [\u2066http://bank.example\u2069](http://evil.example/\u202e)",
    "a\x00b [x\x00](javascript\x00:alert(1)) http://a\x00.example/",
    "| <b>a</b> | [x](javascript:alert(1)) |\n| :-- | --: |\n| ![x](//evil.example/a.png) | <svg> |",
    "9999999999999999999. a\n\n0. b\n\n123456789. c",
    "|" + "a|" * 60 + "\n|" + "-|" * 60 + "\n" + ("|" + "b|" * 60 + "\n") * 50,
    "x" * 1_000_000,
]
INVALID_ADDRESSES = ["http://[a", "http://[your-server]/a", "https://[::1", "http://a\u2100b.example/x", "http://a]/x"]
"""Addresses that Python's `urlsplit` refuses."""
_PIECES = [
    *[
        "[",
        "](",
        ")",
        "![",
        "<",
        ">",
        "`",
        "```\n",
        "*",
        "_",
        "~~",
        "|",
        "\n",
        "\n\n",
        "- ",
        "> ",
        "1. ",
        "# ",
        "    ",
        "&#9;",
        "\\",
    ],
    *["javascript:", "data:", "http://", "https://evil.example/", URL, f"{URL}{TOKEN}/", "/files/", "..", "%2e", "%2f", "\x00"],
    *["\u202e", "|-|-|\n", "[x]: ", "<script>", "onerror=", "a", " ", '"', "'", "@", "mailto:", "xmpp:", ":", ".", "?", "#"],
]
TEXTS = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=5)), max_size=40).map("".join)


def walk(nodes: list[Any]) -> Iterator[list[Any]]:
    """Return the elements of a tree. Fail at what is neither an element nor a text."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, str):
            _, _, children = node
            waiting += children
            yield node


def check_tree(nodes: list[Any]) -> None:
    """Fail at an element, an attribute or an address that the page must not get."""
    for name, attributes, children in walk(nodes):
        assert name in ELEMENTS
        assert set(attributes) <= _ATTRIBUTES.get(name, set()), (name, attributes)
        assert all(isinstance(value, str) for value in attributes.values())
        if name == "a" and attributes:
            # As a browser reads it: without control characters and spaces at the ends, and without tabs and line ends.
            read = re.sub(r"[\t\r\n]", "", re.sub(r"^[\x00-\x20]+", "", attributes["href"]))
            assert read.partition(":")[0].lower() in _SCHEMES, read
        if name == "img":
            assert _SRC.fullmatch(attributes["src"]), attributes
            assert children == []
        assert attributes.get("align", "left") in ("left", "center", "right")
        assert attributes.get("start", "1").isdecimal()


def test_there_are_26_elements_and_none_of_them_runs_anything() -> None:
    assert len(PAYLOADS) >= 40
    assert len(ELEMENTS) == 26
    assert ELEMENTS.isdisjoint({"script", "style", "iframe", "object", "embed", "form", "input", "svg", "math", "base", "link"})


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
async def test_a_payload_becomes_a_harmless_tree(payload: str) -> None:
    for text in (payload, f"a {payload} b", f"- {payload}\n\n> {payload}", f"[{payload}](https://a.example)", f"**{payload}**"):
        nodes = await parse_markdown(text, URL)
        check_tree(nodes)
        to_json(nodes)


@given(TEXTS)
async def test_any_text_becomes_a_harmless_tree(text: str) -> None:
    # Hosts that `urlsplit` refuses have a test of their own.
    nodes = await parse_markdown(re.sub(r"(https?://)(?!127\.0\.0\.1:8080/)[^\s/<>]*", r"\1evil.example", text), URL)
    check_tree(nodes)
    to_json(nodes)


@pytest.mark.parametrize("address", INVALID_ADDRESSES)
async def test_an_invalid_address_in_a_text_is_shown(address: str) -> None:
    nodes = await parse_markdown(f"see {address} there", URL)
    check_tree(nodes)


async def test_a_feed_goes_on_after_an_invalid_address(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors.allowed += ["a request failed with ValueError", "ASGI callable returned"]
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        assert (await ada.ask("install it from http://[your-server]/a")).status_code == 200
        if not (await _can_read(ada, "", lambda feed: feed.find_turns(1))):
            raise ValueError("the feed ends, and each later one too")


async def test_a_feed_goes_on_after_a_question_with_an_invalid_address(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    """It would end all feeds of the person, of all agents, until somebody has answered it."""
    expected_errors.allowed += ["a request failed with ValueError", "ASGI callable returned"]
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        await ada.ask(wish("ask", text="Is it http://[your-server]/a?"), thread="another one")
        if not (await _can_read(ada, "another one", lambda feed: feed.find_question())):
            raise ValueError("the feed ends, and each later one too")


@pytest.mark.parametrize("attachments", [5, None, ["x"], [{"url": "http://[x"}]], ids=str)
async def test_a_feed_goes_on_after_odd_attachments(attachments: Any, tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    """On the embedded server, anybody can send such a message in the name of a person."""
    expected_errors.allowed += ["a request failed with", "ASGI callable returned"]
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        [desk] = [each for each in page.platform.door_agents.list_agents(PAGE_CHANNEL) if each.jid == DESK]
        caller = Caller(ADA, ADA, "", frozenset({DESK}), names_users=False, is_person=True)
        reply = await desk.ask(caller, {"query": "x", "attachments": attachments}, thread="t")
        assert reply.stored is not None
        await reply.stored
        reply.close()
        assert await _can_read(ada, "t", lambda feed: feed.find_turns(1))


async def _can_read(visitor: Visitor, thread: str, read: Callable[[OpenFeed], Awaitable[object]]) -> bool:
    try:
        async with visitor.feed([DESK, thread, 40]) as feed:
            await read(feed)
    except httpx.RemoteProtocolError:  # the connection is closed in its middle
        return False
    return True


@pytest.mark.parametrize("name", ["%2e%2e", "%2E%2e", "%2e"])
async def test_a_picture_leads_to_a_file_as_a_browser_reads_it(name: str) -> None:
    """The URL standard takes `%2e` in a path for a dot."""
    for _, attributes, _ in walk(await parse_markdown(f"![x]({URL}{TOKEN}/{name})", URL)):
        assert unquote(attributes.get("src", "")).rpartition("/")[2] not in (".", "..")


@given(st.text(), st.text(max_size=20), st.sampled_from(["", "image/png", "text/html", "image/svg+xml"]))
def test_a_file_is_shown_as_a_picture_of_here_or_as_a_link(name: str, path: str, media_type: str) -> None:
    for url in (f"{URL}{TOKEN}/{quote(path, safe='')}", f"https://evil.example/{quote(path)}", f"javascript:{quote(path)}"):
        check_tree([show_file(url, name, URL, media_type)])


WORST = {
    "emphasis": "**a*" * 75_000,
    "underscores": "_a" * 150_000,
    "backticks": " ".join("`" * number for number in range(1, 770)),
    "definitions": "[a]: b\n" * 42_000,
    "a table of many cells": ("|" + "a|" * 100 + "\n|" + "-|" * 100 + "\n" + ("|" + "b|" * 100 + "\n") * 1400)[:300_000],
    "addresses": "http://a.... " * 23_000,
    "quotes": "\n".join("> " * (number % 60) + "a" for number in range(4900)),
}


@pytest.mark.parametrize("name", WORST)
async def test_a_long_text_does_not_block_the_event_loop(name: str) -> None:
    """It is parsed beside the loop, which goes on with others meanwhile."""
    parsing = asyncio.create_task(parse_markdown(WORST[name][:300_000], URL))
    longest, last = 0.0, time.monotonic()
    while not parsing.done() and time.monotonic() - last < 60:
        before = time.monotonic()
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - before)
    check_tree(await parsing)
    assert longest < 2


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        ("TABLE", {}),
        ("TABLE", {"columns": ["a"]}),
        ("TABLE", {"columns": "a", "rows": [{"a": 1}]}),
        ("TABLE", {"columns": ["a"], "rows": {"a": 1}}),
        ("TABLE", {"columns": ["a"], "rows": [1, None]}),
        ("TABLE", {"columns": [["a"], {"b": 1}], "rows": []}),
        ("TABLE", {"columns": ["a"] * 200, "rows": [{"a": 1}] * 200}),
        ("KEY_VALUE", {str(number): number for number in range(20_000)}),
        ("LIST", {"items": [1, {"a": None}]}),
        ("other", {"a": "<b>"}),
        (None, {"a": "<b>"}),
    ],
)
def test_data_that_are_no_table_or_a_large_one_are_shown_as_json(hint: str | None, data: dict[str, Any]) -> None:
    title, body = show_data({"title": "<i>", "view_hint": hint, "data": data})
    check_tree([title, body])
    assert (body[0], json.loads(body[2][0])) == ("pre", data)


def test_data_are_tables_whose_cells_are_texts() -> None:
    rows = [{"a": "<b>", "b": None}, {"b": {"c": 1}}]
    [table] = show_data({"data": {"columns": ["a", "b"], "rows": rows}, "view_hint": "TABLE"})
    assert [[cell[2] for cell in row[2]] for row in table[2]] == [[["a"], ["b"]], [["<b>"], ["null"]], [[""], ['{"c":1}']]]
    check_tree(show_data({"data": {"a": "<b>"}, "view_hint": "KEY_VALUE"}))


_DEAR = {
    "brackets": "[" * 10_000,
    "pictures": "![" * 5_000,
    "a table whose rows are filled up": "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + "|a|\n" * 2190,
}


async def test_a_short_text_has_no_large_tree() -> None:
    nodes = await parse_markdown(_DEAR["a table whose rows are filled up"], URL)
    assert len(to_json(nodes)) < 200_000


async def test_payloads_in_every_field_reach_the_page_as_texts(tmp_path: Path) -> None:
    """In texts, answers, thoughts, data, questions, choices, schemas, names and types of files, threads and titles."""
    payload = "<img src=x onerror=alert(1)> [x](javascript:alert(1)) ![x](http://127.0.0.1:8080/files/../logout) \u202e"
    schema = {"type": "object", "properties": {payload: {"type": "string", "title": payload, "enum": [payload]}}}
    table = {"columns": [payload], "rows": [{payload: payload}]}
    async with RunningPage.open(tmp_path) as page:
        ada, bob, thread = await page.log_in(ADA), await page.log_in(BOB), payload[:-2]
        wishes = [
            payload,
            wish("think", text=payload),
            wish("data", text=payload, data=table, hint="TABLE"),
            wish("ask", text=payload, choices=[payload, "b"]),
        ]
        for text in wishes:
            assert (await ada.ask(text, thread=thread)).status_code == 200
        assert (await bob.ask(wish("ask", text=payload, schema=schema))).status_code == 200
        async with bob.feed() as feed:
            asked = await feed.find_question()
            check_tree(asked["blocks"])
            assert asked["schema"] == schema
        async with ada.feed([DESK, thread, 40]) as feed:
            asked = await feed.find_question()
            check_tree(asked["blocks"])
            assert asked["choices"] == [payload, "b"]
            reply = await ada.post("/chat/answer", agent=DESK, code=asked["code"], text=payload)
            assert (reply.status_code, reply.json()["is_taken"]) == (200, True)
            turns = await feed.find_turns(4)
            assert turns[0]["me"] == {"text": payload, "files": []}
            for turn in turns:
                for part in turn["parts"]:
                    check_tree(part.get("blocks", []))
            listed = (await ada.post("/chat/search", text="onerror")).json()
            assert [(each["thread"], each["title"][:20]) for each in listed] == [(thread, payload[:20])]
        async with bob.client() as http:
            path = f"/chat/file/{DESK}/{uuid4()}/{quote('<svg onload=alert(1)>.svg')}"
            stored = (await http.post(path, content=b"<svg/>", headers={"Content-Type": "image/svg+xml"})).json()
            sent = await bob.ask("a file", id=urlsplit(path).path.split("/")[4], files=[stored], thread="files")
            assert sent.status_code == 200
            async with bob.feed([DESK, "files", 40]) as feed:
                [turn] = await feed.find_turns(1)
                check_tree(turn["me"]["files"])
            served = await http.get(stored["url"])
            assert served.headers["content-type"] == "text/plain; charset=utf-8"
            assert served.headers["content-security-policy"] == "default-src 'none'; sandbox; frame-ancestors 'none'"
            assert served.headers["content-disposition"].startswith("attachment")


async def test_files_and_threads_that_the_page_would_not_send_are_refused(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        for url in ("javascript:alert(1)", "https://evil.example/files/x", "//evil.example", f"{page.url}/logout", ""):
            file = {"url": url, "name": "x", "type": "image/png", "size": 1}
            assert (await ada.ask("hi", files=[file])).status_code == 400
        for thread in ("a\x00b", "a\nb", "x" * 1001):
            assert (await ada.ask("hi", thread=thread)).status_code == 400
        for text in ("x" * 262_145, "x" * 1_000_000):
            assert (await ada.ask(text)).status_code == 413
        async with ada.client() as http:
            for body in (
                b'{"text": "\\ud800"}',
                b"\xff",
                b"[",
                b"[]",
                b"null",
                b'{"id": 1}',
                b'{"files": [{}]}',
            ):
                assert (await http.post("/chat/ask", content=body)).status_code == 400
            for name in ("%00", "%0a", "a%0d%0ab", "..%2f..%2flogout"):
                assert (await http.post(f"/chat/file/{DESK}/{uuid4()}/{name}", content=b"x")).status_code in (400, 401, 404)


async def test_a_picture_that_can_run_scripts_is_sent_as_a_text(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        async with ada.client() as http:
            headers = {"Content-Type": "image/svg+xml;a=b"}
            stored = await http.post(f"/chat/file/{DESK}/{uuid4()}/a.svg", content=b"<svg/>", headers=headers)
            assert not (await http.get(stored.json()["url"])).headers["content-type"].startswith("image/svg")
