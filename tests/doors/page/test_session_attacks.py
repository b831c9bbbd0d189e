"""Each route of the page with a part of a session, with somebody else's, from elsewhere, and with a key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.page import ADA, BOB, CAROL, DESK, PRIVATE, PageDesk, RunningPage, Visitor, wish
from tests.support.wait import eventually
from tests.support.web_server import WebServer, page as web_page

ROUTES = ("/chat/me", "/chat/feed", "/chat/ask", "/chat/cancel", "/chat/answer", "/chat/search", "/chat/commands", "/logout")
OTHER = "https://chat.example.org"


@asynccontextmanager
async def run_page(directory: Path, **web: Any) -> AsyncIterator[RunningPage]:
    """Run the page beside a door, for which another web site may ask."""
    async with RunningPage.open(directory, {"cors_origins": [OTHER], **web}) as page:
        yield page


async def post_all(visitor: Visitor) -> dict[str, int]:
    """Send a request to each route. Return the statuses."""
    body = {"agent": DESK, "text": "from a stranger", "id": str(uuid4()), "code": "ABCDEF", "decision": "approve"}
    found = {route: (await visitor.post(route, **body)).status_code for route in ROUTES}
    async with visitor.client() as http:
        path = f"/chat/file/{DESK}/{uuid4()}/a.txt"
        found["/chat/file"] = (await http.post(path, content=b"x")).status_code
    return found


async def test_each_route_needs_both_secrets_of_one_session(tmp_path: Path) -> None:
    async with run_page(tmp_path) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        name, cookie = ada.cookie
        key = (await page.call("keys.create", name="editor", agents=["desk"], account=ADA)).secret
        half = Visitor(page.url)
        strangers = {
            "without a session": half,
            "with the cookie alone": replace(half, cookie=ada.cookie),
            "with the key alone": replace(half, key=ada.key),
            "with the key of another session": replace(half, cookie=ada.cookie, key=bob.key),
            "with the secrets exchanged": replace(half, cookie=(name, ada.key), key=cookie),
            "with the whole secret as a cookie": replace(half, cookie=(name, cookie + ada.key)),
            "with the whole secret as a key": replace(half, key=cookie + ada.key),
            "with the cookie of another port": replace(half, cookie=("page-1", cookie), key=ada.key),
            "with the cookie of TLS": replace(half, cookie=("__Host-page", cookie), key=ada.key),
            "with a wrong cookie first": replace(half, cookie=(name, f"{'x' * 43}; {name}=x"), key=ada.key),
            "with an API key": replace(half, headers={"Authorization": f"Bearer {key}"}),
            "with an API key as secrets": replace(half, cookie=(name, key[:43]), key=key[:43]),
        }
        for how, visitor in strangers.items():
            assert set((await post_all(visitor)).values()) == {401}, how
        assert PageDesk.seen == []
        assert (await ada.post("/chat/me")).json()["account"] == ADA


async def test_each_route_needs_the_origin_of_the_page(tmp_path: Path) -> None:
    async with run_page(tmp_path) as page:
        ada = await page.log_in(ADA)
        port = page.web.port
        for origin in (
            "",  # none
            "null",
            OTHER,
            "https://evil.example",
            f"http://127.0.0.1:{port + 1}",
            f"http://localhost:{port}",
            f"https://127.0.0.1:{port}",
            f"http://127.0.0.1:{port}.evil.example",
            f"http://127.0.0.1:{port}/",
            f"http://127.0.0.1:{port} {OTHER}",
        ):
            assert set((await post_all(replace(ada, origin=origin))).values()) == {403}, origin
        for origin in ("", OTHER):
            link = await page.make_link(ADA)
            for route in ("/login", "/login/name"):
                assert (await replace(page.stranger(), origin=origin).post(route, link=link)).status_code == 403
            assert (await page.stranger().post("/login/name", link=link)).status_code == 200
        async with httpx.AsyncClient(base_url=page.url) as http:
            asked = {"Origin": OTHER, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-page-key"}
            preflight = await http.options("/chat/me", headers=asked)
            assert "access-control-allow-credentials" not in preflight.headers
            for origins in ([page.url, OTHER], [OTHER, page.url], [page.url, page.url]):
                headers = [("Origin", each) for each in origins]
                headers += [("Cookie", "=".join(ada.cookie)), ("X-Page-Key", ada.key)]
                assert (await http.post("/chat/me", content=b"{}", headers=headers)).status_code == 403
        assert PageDesk.seen == []
        assert (await ada.post("/chat/me")).status_code == 200


async def test_nothing_is_read_or_changed_by_another_method_or_for_another_host(tmp_path: Path) -> None:
    async with run_page(tmp_path) as page:
        ada = await page.log_in(ADA)
        async with ada.client() as http:
            for route in (*ROUTES, "/login/name", f"/chat/file/{DESK}/{uuid4()}/a.txt"):
                for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE"):
                    reply = await http.request(method, f"{route}?agent={DESK}&text=x&id={uuid4()}")
                    assert reply.status_code in (405, 400, 401), (route, method)
                for method in ("GET", "DELETE"):
                    overridden = await http.request(method, route, headers={"X-HTTP-Method-Override": "POST"})
                    assert overridden.status_code in (405, 401)
            for host in ("evil.example", f"127.0.0.1.evil.example:{page.web.port}", "10.0.0.1"):
                for route in ROUTES:
                    assert (await http.post(route, content=b"{}", headers={"Host": host})).status_code == 421
            assert (await http.get("/", headers={"Host": f"localhost:{page.web.port}"})).headers["location"] == f"{page.url}/"
        assert (await ada.post("/chat/me")).status_code == 200


async def test_a_session_opens_no_door(tmp_path: Path) -> None:
    async with run_page(tmp_path) as page:
        ada = await page.log_in(ADA)
        for headers in ({}, {"Authorization": f"Bearer {ada.key}"}, {"Authorization": f"Bearer {ada.cookie[1]}{ada.key}"}):
            async with replace(ada, headers=headers).client() as http:
                for path in ("/v1/models", "/v1/chat/completions", "/v1/responses", "/a2a/desk", "/mcp", "/chat", "/unknown"):
                    assert (await http.post(path, content=b"{}")).status_code == 401, path
                    assert (await http.get(path)).status_code == 401, path


async def test_a_person_gets_nothing_of_others(tmp_path: Path) -> None:
    """Neither agents, nor threads, requests, codes or what is stored under the same names."""
    async with run_page(tmp_path) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        ident, thread = str(uuid4()), str(uuid4())
        assert (await ada.ask("a secret of Ada", id=ident, thread=thread)).status_code == 200
        assert (await ada.ask("a private secret", PRIVATE, thread=thread)).status_code == 200
        await ada.turns(1, DESK, thread)
        await ada.ask(wish("ask", text="a secret question"), thread=thread)
        async with ada.feed([DESK, thread, 40]) as feed:
            code = (await feed.find_question())["code"]
        held = str(uuid4())
        await ada.ask(wish("hold", text="a secret on hold"), id=held, thread="held")
        await eventually(lambda: any("hold" in text for _, text in PageDesk.seen))
        for route in ("/chat/ask", "/chat/cancel", "/chat/answer", "/chat/commands"):
            for agent in (PRIVATE, "private", "nobody@localhost", "", "*", f"{PRIVATE}/x", PRIVATE.upper()):
                reply = await bob.post(route, agent=agent, text="x", id=ident, code=code)
                assert reply.status_code == 404, (route, agent)
        async with bob.client() as http:
            assert (await http.post(f"/chat/file/private/{ident}/a.txt", content=b"x")).status_code == 404
        assert (await bob.post("/chat/search", text="secret")).json() == []
        for request in (ident, held):
            assert (await bob.post("/chat/cancel", agent=DESK, id=request)).json() is False
        for decision in ("", "approve", "deny"):
            reply = await bob.post("/chat/answer", agent=DESK, code=code, text="yes", decision=decision)
            assert "asked you nothing with this code" in reply.text
        wanted = [[DESK, thread, 2000], [DESK, "held", 40], [PRIVATE, thread, 2000], [DESK, ADA, 40], ["nobody@x", "", 1]]
        async with bob.feed(*wanted) as feed:
            assert [each["jid"] for each in (await feed.find("agents"))["agents"]] == [DESK]
            await bob.ask("of Bob", thread=thread, id=str(uuid4()))
            while not any(state["type"] == "turns" and state["turns"] for state in feed.states):
                await anext(feed)
        told = json.dumps(feed.states)
        assert "of Bob" in told
        assert "secret" not in told
        async with ada.feed([DESK, thread, 40]) as feed:
            assert len(await feed.find_turns(1)) == 1
        assert "of Bob" not in json.dumps(feed.states)
        PageDesk.release.set()
        assert "a secret on hold at last" in json.dumps(await ada.turns(1, DESK, "held"))


async def test_a_person_who_loses_access_gets_nothing_more(tmp_path: Path) -> None:
    """The agent is hidden within seconds, also while an answer grows, and takes nothing."""
    async with RunningPage.open(tmp_path, access={"allow": [CAROL], "operators": [CAROL]}) as page:
        await page.call("access.admit", agent=DESK, person=ADA)
        ada = await page.log_in(ADA)
        await ada.ask("before")
        async with ada.feed() as feed:
            await feed.find_turns(1)
            await page.call("access.reject", agent=DESK, person=ADA)
            while DESK in str(await feed.find("agents")):
                pass
            assert {"type": "conversations", "conversations": []} in feed.states
        for route in ("/chat/ask", "/chat/cancel", "/chat/answer", "/chat/commands"):
            assert (await ada.post(route, agent=DESK, text="after", code="ABCDEF")).status_code == 404
        assert (await ada.post("/chat/search", text="before")).json() == []
        async with ada.feed() as feed:
            assert DESK not in str(await feed.find("agents"))
            assert not any(state["type"] == "turns" for state in feed.states)
        assert [text for _, text in PageDesk.seen] == ["before"]


async def test_who_is_taken_from_access_allow_gets_nothing_more_after_a_restart_and_others_do(tmp_path: Path) -> None:
    """The sessions go on. Each request is refused in one line."""
    [port] = find_free_ports(1)
    ident = str(uuid4())
    async with RunningPage.open(tmp_path, {"port": port}, access={"allow": [ADA, BOB]}) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        for visitor in (ada, bob):
            assert (await visitor.ask("before")).status_code == 200
            await visitor.turns(1)
        await ada.ask(wish("ask", text="Which one?"))
        async with ada.feed() as feed:
            code = (await feed.find_question())["code"]
        await ada.ask("of the private agent", PRIVATE)
        await ada.turns(1, PRIVATE)
    async with RunningPage.open(tmp_path, {"port": port}, access={"allow": [BOB]}) as page:
        refused = []
        for route in ("/chat/ask", "/chat/cancel", "/chat/answer", "/chat/commands"):
            for text in ("after", "/status", "/history"):
                refused.append(await ada.post(route, agent=DESK, text=text, code=code, id=ident))
        async with ada.client() as http:
            refused.append(await http.post(f"/chat/file/{DESK}/{ident}/a.txt", content=b"x"))
        for reply in refused:
            assert reply.status_code == 404
            assert reply.json()["error"]["message"] == "There is no such agent, or you have no access to it."
        assert [each["agent"] for each in (await ada.post("/chat/search", text="e")).json()] == [PRIVATE]
        async with ada.feed([DESK, "", 40], [PRIVATE, "", 40]) as feed:
            assert [each["agent"] for each in (await feed.find("conversations"))["conversations"]] == [PRIVATE]
            assert [each["jid"] for each in (await feed.find("agents"))["agents"]] == [PRIVATE]
            assert len((await feed.find("turns", agent=PRIVATE))["turns"]) == 1
        assert "before" not in json.dumps(feed.states)
        assert "Which one?" not in json.dumps(feed.states)
        assert PageDesk.seen == []
        assert (await bob.ask("after")).status_code == 200
        assert [turn["me"]["text"] for turn in await bob.turns(2)] == ["before", "after"]
        assert PageDesk.seen == [(BOB, "after")]


async def test_another_port_of_the_host_gets_the_cookie_and_nothing_by_it(tmp_path: Path) -> None:
    async with run_page(tmp_path) as page, WebServer({"/": web_page(b"hello")}, "127.0.0.1") as other:
        link = await page.make_link(ADA)
        async with httpx.AsyncClient(trust_env=False) as browser:
            headers = {"Origin": page.url}
            logged_in = await browser.post(f"{page.url}/login", json={"link": link}, headers=headers)
            key = logged_in.json()["key"]
            set_cookie = logged_in.headers["set-cookie"].lower()
            assert all(each in set_cookie for each in ("httponly", "samesite=strict", "path=/"))
            assert key.lower() not in set_cookie
            await browser.get(other.url())
            [stolen] = [line for line in other.requests[0].split("\r\n") if line.lower().startswith("cookie:")]
        name, _, value = stolen.partition(": ")[2].partition("=")
        assert name == f"page-{page.web.port}"
        thief = Visitor(page.url, (name, value))
        # A program on the machine may send any header, and has no key.
        for attempt in (
            thief,
            replace(thief, key=value),
            replace(thief, key="x" * 43),
            replace(thief, headers={"Host": "localhost"}),
        ):
            assert set((await post_all(attempt)).values()) == {401}
        # And the page of the other server is of another origin.
        assert set((await post_all(replace(thief, key=key, origin=other.url("")))).values()) == {403}
        assert PageDesk.seen == []
        assert (await Visitor(page.url, (name, value), key).post("/chat/me")).status_code == 200
