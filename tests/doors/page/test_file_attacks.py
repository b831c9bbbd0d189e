"""Links to files in messages: one opens its file to everyone who has it, and nothing else to anyone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from tests.support.page import ADA, BOB, DESK, PRIVATE, RunningPage, Visitor, wish

File = dict[str, Any]


async def store(
    visitor: Visitor, ident: str, name: str, data: bytes, agent: str = DESK, media_type: str = "text/plain"
) -> File:
    """Store a file for a message with this id. Return what the message names then."""
    async with visitor.client() as http:
        reply = await http.post(f"/chat/file/{agent}/{ident}/{name}", content=data, headers={"Content-Type": media_type})
    assert reply.status_code == 200
    return dict(reply.json())


async def fetch(url: str) -> httpx.Response:
    """Fetch a link, as somebody who is not logged in."""
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url)


async def say(visitor: Visitor, text: str) -> str:
    """Send a text in a conversation of its own. Return its answer."""
    thread = str(uuid4())
    assert (await visitor.ask(text, thread=thread)).status_code == 200
    return json.dumps((await visitor.turns(1, thread=thread))[0]["parts"])


async def forget(visitor: Visitor) -> None:
    """Let the agent forget a person."""
    async with visitor.feed() as feed:
        while not (await feed.find("conversations"))["conversations"]:
            pass
        assert (await visitor.ask("/forget me yes")).status_code == 200
        while (await feed.find("conversations"))["conversations"]:
            pass


async def test_a_file_has_a_link_of_its_own_for_each_person_agent_and_message_and_opens_by_nothing_else(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, bob, ident = await page.log_in(ADA), await page.log_in(BOB), str(uuid4())
        own = await store(ada, ident, "a.txt", b"of Ada")
        others = [
            await store(bob, ident, "a.txt", b"of Bob"),
            await store(ada, str(uuid4()), "a.txt", b"of Ada"),
            await store(ada, ident, "a.txt", b"of Ada", PRIVATE),
            await store(ada, ident, "b.txt", b"of Ada"),
        ]
        tokens = {urlsplit(file["url"]).path.split("/")[2] for file in (own, *others)}
        assert len(tokens) == 5
        assert {len(token) for token in tokens} == {43}
        assert (await fetch(own["url"])).content == b"of Ada"
        assert (await fetch(others[0]["url"])).content == b"of Bob"
        _, _, token, name = urlsplit(own["url"]).path.split("/")
        for wrong in (token[:-1], f"{token}x", token.swapcase(), token[::-1], "x" * 43, "%", "*", ident, ADA):
            assert (await fetch(f"{page.url}/files/{wrong}/{name}")).status_code == 404
        for path in (f"/files/{token}", f"/files/{token}/", "/files/", "/files", f"/chat/file/{DESK}/{ident}/{name}"):
            assert (await fetch(page.url + path)).status_code in (401, 404, 405)


async def test_a_message_with_the_file_of_somebody_else_has_no_more_than_its_link(tmp_path: Path) -> None:
    """It is a copy of a link that was passed on: whose it is, how long it is there, and how it is sent stay the same."""
    async with RunningPage.open(tmp_path) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        ident = str(uuid4())
        own = await store(ada, ident, "page.html", b"<script>alert(1)</script>", media_type="text/html")
        assert (await ada.ask("here it is", id=ident, files=[own])).status_code == 200
        [before] = await ada.turns(1)
        false = {**own, "name": "<b>me</b>.png", "type": "image/png", "size": 1}
        texts = [own["url"], f"![x]({own['url']})", f"[x]({own['url']})"]
        assert (await bob.ask("mine", files=[false, own])).status_code == 200
        await bob.turns(1)
        for number, text in enumerate(texts):
            await bob.ask(text)
            await bob.turns(number + 2)
        shown = (await bob.turns(1))[0]["me"]["files"]
        path = urlsplit(own["url"]).path
        assert shown == [["img", {"src": path, "alt": "<b>me</b>.png"}, []], ["a", {"href": own["url"]}, ["page.html"]]]
        # What Bob says of it changes nothing of what is sent.
        served = await fetch(own["url"])
        assert served.headers["content-type"] == "text/plain; charset=utf-8"
        assert served.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
        assert "sandbox" in served.headers["content-security-policy"]
        # Nor does Ada see it, and it stays hers: only she can delete it, and then it is gone for him too.
        assert await ada.turns(1) == [before]
        assert (await ada.post("/chat/search", text="mine")).json() == []
        await forget(bob)
        assert (await fetch(own["url"])).status_code == 200
        await bob.ask("again", files=[false])
        await bob.turns(1)
        await forget(ada)
        assert (await fetch(own["url"])).status_code == 404
        assert (await bob.turns(1))[0]["me"]["files"] == [["img", {"src": path, "alt": "<b>me</b>.png"}, []]]


async def test_the_file_of_another_message_or_agent_may_be_sent_again(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        files = [await store(ada, str(uuid4()), "a.txt", b"a"), await store(ada, str(uuid4()), "b.txt", b"b", PRIVATE)]
        assert (await ada.ask("both", files=files)).status_code == 200
        shown = (await ada.turns(1))[0]["me"]["files"]
        assert [each[1]["href"] for each in shown] == [file["url"] for file in files]


async def test_an_agent_that_fetches_a_link_of_a_message_gets_files_alone_from_the_platform(tmp_path: Path) -> None:
    """Those have a private address here, and other paths of it are none of their business."""
    async with RunningPage.open(tmp_path) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        url = (await store(ada, str(uuid4()), "a.txt", b"of Ada"))["url"]
        assert "of Ada" in await say(bob, wish("fetch", text=url))
        below, path = f"{page.url}/files", urlsplit(url).path
        for wrong in (
            f"{page.url}/",
            f"{page.url}/words",
            f"{below}/../words",
            f"{below}/../../words",
            f"{below}/x/../../words",
            f"{below}/%2e%2e/words",
            f"{below}/%2E%2E%2Fwords",
            f"{below}/..%2fwords",
            f"{below}/..;/words",
            f"{below}//../../words",
            f"{below}/..\\words",
            f"{below}.example/x",
            page.url.replace("127.0.0.1", "localhost") + path,
            page.url.replace("127.0.0.1", "127.1") + path,
            page.url.replace("//", "//a@") + path,
            f"http://127.0.0.1:1/{below}/x",
        ):
            answer = await say(bob, wish("fetch", text=wrong))
            assert "not fetched: " in answer, wrong
            assert "language" not in answer
        for wrong in (f"{below}/../words", f"{below}/%2e%2e/words", f"{below}/../logout", f"{below}/x?a=/../../logout"):
            file = {"url": wrong, "name": "a.png", "type": "image/png", "size": 1}
            assert (await bob.ask("look", files=[file], thread="odd")).status_code == 200
        for turn in await bob.turns(4, thread="odd"):
            assert [each[0] for each in turn["me"]["files"]] == ["a"]
        assert (await bob.post("/chat/me")).status_code == 200
