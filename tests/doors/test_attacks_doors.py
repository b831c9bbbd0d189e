"""Attacks on the doors of one platform, each at every door: what others may try who have no key, or a key of another."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.routing import Route

from spade_coreason.config import WebSettings
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.callers import person_below
from spade_coreason.domain.messages import COMMAND_METADATA
from spade_coreason.storage import KeyRepository
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.all_doors import DOORS, WITH_KEYS, AllDoors, Desk, Hidden, run_all_doors
from tests.support.doors import ask as ask_raw
from tests.support.program import run_command, run_in_background
from tests.support.questions import code_of
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = {"/files/{token}/{name}", "/webhooks/answers/{token}", "/webhooks/{name}"}
"""The only paths of doors without a key. A link that cannot be guessed, or a signature, protects each."""
SENT_BY_PAGE = {"/login", "/login/name", "/logout", "/chat/file/{agent}/{id:uuid}/{name}"} | {
    f"/chat/{name}" for name in ("me", "feed", "ask", "cancel", "answer", "search", "commands")
}
"""The paths for which the page in the browser needs its own origin, and a link or a session."""
PAGE = {"/", "/login", "/static/{name}"}
"""The paths of its files, which are the same for all."""
A2A_PATHS = ("/.well-known/agent-card.json", "/message:send", "/message:stream", "/tasks", "/tasks/{id}", "/tasks/{id}:cancel")


def find_paths(running: AllDoors, *, are_open: bool = False) -> Iterator[str]:
    """Return the templates of the paths of the running server."""
    server = running.platform._web
    assert server is not None
    for door in server._doors:
        for route in door.open_routes if are_open else door.routes:
            assert isinstance(route, Route)
            if route.path.endswith("{rest:path}"):
                yield from (route.path.removesuffix("/{rest:path}") + path for path in A2A_PATHS)
            else:
                yield route.path


def fill(path: str, agent: str, ident: str) -> str:
    for name, value in {"{agent}": agent, "{model}": agent, "{name}": "ci"}.items():
        path = path.replace(name, value)
    for name in ("{id:uuid}", "{id}", "{response}", "{token}"):
        path = path.replace(name, ident)
    assert "{" not in path
    return path


# No key, another key


async def test_only_three_paths_and_the_page_have_no_key_and_none_lets_anyone_in(prosody: XmppServer, tmp_path: Path) -> None:
    """Exempt paths, trusted localhost, upgrades and paths that end in "health": none of them is let in."""
    async with run_all_doors(prosody, tmp_path) as running:
        assert set(find_paths(running, are_open=True)) == OPEN | SENT_BY_PAGE | PAGE
        paths = [fill(path, running.name(), f"resp_{uuid4().hex}") for path in find_paths(running)]
        assert len(paths) >= 15
        async with running.http() as http:
            for path, method in product(paths, METHODS):
                for suffix in ("", "/health", "/healthz"):
                    reply = await http.request(method, path + suffix)
                    assert reply.status_code == 401, (method, path + suffix)
            upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"]
            for path in paths:
                for form in (path, f"{path}/../healthz", f"/healthz/..{path}", f"/healthz;{path}"):
                    assert (await ask_raw(running.web, form, *upgrade, key=None)).status == 401
            for path in OPEN:
                for method in METHODS:
                    reply = await http.request(method, fill(path, running.name(), "x" * 43))
                    assert reply.status_code in (401, 404, 405, 429), (method, path)
            for path, method in product(SENT_BY_PAGE | PAGE, METHODS):
                reply = await http.request(method, fill(path, running.name(), str(uuid4())))
                is_file = path in ("/", "/login") and method in ("GET", "HEAD")
                assert reply.status_code in ((200,) if is_file else (403, 404, 405)), (method, path)
        assert Desk.seen == []
        await running.check_doors()


async def test_a_key_reaches_only_its_agents_by_only_the_doors_that_they_list(prosody: XmppServer, tmp_path: Path) -> None:
    """A caller is known, and still not allowed: it opens `desk` by its doors, not another agent, and no agent without doors."""
    async with run_all_doors(prosody, tmp_path) as running:
        async with running.http("website") as http:
            models = (await http.get("/v1/models")).json()["data"]
            assert [model["id"] for model in models] == [running.name()]
            tools = (await running.mcp(http, "tools/list", {})).json()["result"]["tools"]
            assert [tool["name"] for tool in tools] == [f"{running.name()}_chat"]
            for agent in (running.other, running.closed):
                for name in (running.name(agent), agent):
                    assert (await http.get(f"/v1/models/{name}")).status_code == 404
                    for path in ("", *A2A_PATHS):
                        reply = await http.request("GET", f"/a2a/{name}{path}".replace("{id}", str(uuid4())))
                        assert reply.status_code == 404
        for agent, door in product((running.other, running.closed), WITH_KEYS):
            answer = await running.ask(door, "website", "let me in", agent=agent)
            assert "a secret of the hidden agent" not in answer.text
            assert answer.status == 404 or "no such tool" in answer.text, answer
        assert Hidden.seen == []
        await running.check_doors()


async def test_an_agent_is_behind_the_doors_that_it_lists_and_no_others(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running:
        issued = await running.call("keys.create", name="partner", agents=[running.partly, running.closed])
        running.keys["partner"] = issued.secret
        webhook = await running.call("webhooks.create", name="partner", agent=running.partly)
        for agent, door in product((running.partly, running.closed), WITH_KEYS):
            answer = await running.ask(door, "partner", f"by {door}", agent=agent)
            if (agent, door) == (running.partly, "openai"):
                assert "a secret of the hidden agent" in answer.text
            else:
                assert answer.status == 404 or "no such tool" in answer.text, answer
        async with running.http("partner") as http:
            assert (await running.mcp(http, "tools/list", {})).json()["result"]["tools"] == []
            running.secret = webhook.secret
            headers = running.sign(b"{}", "m")
            assert (await http.post("/webhooks/partner", content=b"{}", headers=headers)).status_code == 503
        assert Hidden.seen == ["by openai"]


async def test_a_revoked_key_is_refused_at_each_door_and_ends_what_waits_there(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running:
        waiting = [asyncio.create_task(running.ask(door, "website", f"hold {door}")) for door in WITH_KEYS]
        await eventually(lambda: len(Desk.seen) == len(WITH_KEYS))
        await running.call("keys.revoke", name="website")
        for door in WITH_KEYS:
            assert (await running.ask(door, "website", "again")).status == 401
            assert (await running.ask(door, "shop", f"mine {door}")).status == 200
        async with asyncio.timeout(TIMEOUT_S):
            for answer in await asyncio.gather(*waiting):
                assert "done: hold" not in answer.text
        assert not Desk.release.is_set()


async def test_a_key_that_ends_lets_a_running_turn_end_and_nothing_that_waits(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running:
        runs = asyncio.create_task(running.ask("openai", "website", "hold", thread="t"))
        await eventually(lambda: len(Desk.seen) == 1)
        waits = asyncio.create_task(running.ask("openai", "website", "hello", thread="t"))
        await eventually(lambda: running.platform.door_agents.open_count == 2)
        assert running.platform.database is not None
        stored = await KeyRepository(running.platform.database).find("website")
        assert stored is not None
        running.platform._builder.key_ring.take(stored.until(utc_now()))  # as if its time were over
        assert (await running.ask("openai", "website", "again")).status == 401
        Desk.release.set()
        assert "done: hold" in (await runs).text
        assert (await waits).status == 403
        assert [query for _, query in Desk.seen] == ["hold"]


# Names in headers


async def test_a_header_makes_nobody_of_a_caller_but_a_person_below_a_front_end(prosody: XmppServer, tmp_path: Path) -> None:
    async with StockClient(*await prosody.account(), prosody) as alice, run_all_doors(prosody, tmp_path) as running:
        jid = alice.full_jid.partition("/")[0]
        await alice.ask("remember xylophone", running.desk)
        names = {"X-Forwarded-User": jid, "X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"}
        for door in DOORS:
            answer = await running.ask(door, "website", "recall", **names)
            assert (answer.status, "xylophone" in answer.text) == (200, False), answer
        for door, header in product(WITH_KEYS, ("X-Forwarded-User", "X-OpenWebUI-User-Id")):
            for user in (jid, jid.upper(), f"{jid}/phone", "website@callers.invalid", "website", running.desk):
                answer = await running.ask(door, "front", "recall", **{header: user})
                assert (answer.status, "xylophone" in answer.text) == (200, False), answer
        people = {person for person, _ in Desk.seen}
        below = {person_below("front", user) for user in (jid, jid.upper(), f"{jid}/phone", "website", running.desk)}
        assert people == {jid, "website@callers.invalid", "hook-ci@callers.invalid", *below} | {
            person_below("front", "website@callers.invalid")
        }
        assert "xylophone" in await alice.ask("recall", running.desk)


@pytest.mark.parametrize("header", ["Host: evil.example", "Origin: https://evil.example", "X-Forwarded-Host: evil.example"])
async def test_no_door_answers_under_another_name_or_to_the_page_of_another_site(
    prosody: XmppServer, tmp_path: Path, header: str
) -> None:
    """A name that leads here (DNS rebinding), and the page of another site (CSRF), with a key and a signature that are good."""
    name, _, value = header.partition(": ")
    expected = {"Host": 421, "Origin": 403, "X-Forwarded-Host": None}[name]
    async with run_all_doors(prosody, tmp_path) as running:
        for door in DOORS:
            answer = await running.ask(door, "website", "hello", **{name: value})
            assert "access-control-allow-origin" not in answer.headers
            assert "set-cookie" not in answer.headers
            if expected is None:  # no proxy is named, so that its headers do not count
                assert answer.status == 200
                assert "evil.example" not in answer.text
            else:
                assert answer.status == expected, answer
        async with running.http(**{name: value}) as http:
            for path in find_paths(running, are_open=True):
                reply = await http.get(fill(path, running.name(), "x" * 43))
                assert reply.status_code == (expected or reply.status_code)
        assert len(Desk.seen) == (0 if expected else len(DOORS))


# Reading, and what is read twice


async def test_no_get_asks_cancels_or_deletes_anything(prosody: XmppServer, tmp_path: Path) -> None:
    """A link that a browser, a preview or a scanner opens changes nothing, also with a key."""
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        held = asyncio.create_task(running.ask("openai", "website", "hold"))
        made = await http.post("/v1/responses", json={"model": running.name(), "input": "hold", "background": True})
        task = (await running.rpc(http, running.name(), "SendMessage", immediate("hold"))).json()["result"]["task"]
        await eventually(lambda: len(Desk.seen) == 3)
        for path, ident, method in product([*find_paths(running), *OPEN], (made.json()["id"], task["id"]), ("GET", "HEAD")):
            reply = await http.request(method, fill(path, running.name(), ident) + "?query=hello&method=SendMessage")
            assert reply.status_code in (200, 202, 400, 401, 404, 405), (path, reply.text)
        assert len(Desk.seen) == 3
        assert (await http.get(f"/v1/responses/{made.json()['id']}")).json()["status"] == "in_progress"
        found = (await running.rpc(http, running.name(), "GetTask", {"id": task["id"]})).json()["result"]
        assert found["status"]["state"] in ("TASK_STATE_WORKING", "TASK_STATE_SUBMITTED")
        Desk.release.set()
        assert "done: hold" in (await held).text


def immediate(text: str) -> dict[str, Any]:
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message, "configuration": {"returnImmediately": True}}


async def test_a_link_is_as_good_after_a_preview_has_opened_it(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http() as http:
        accepted = await running.post_event(http, "hello")
        await running.ask("webhook", "", "another")
        await running.ask_openai_with_picture("website", b"\x89PNG\r\n\x1a\n1")
        for link in (accepted.json()["answer"], Desk.payloads[-1]["attachments"][0]["url"]):
            first = await http.get(link)
            for _ in range(3):
                again = await http.get(link)
                assert (again.status_code, again.content) == (200, first.content)


# What a door is told to fetch


@asynccontextmanager
async def trap() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Listen on loopback, as a service does that only this machine should reach. Yield its address and what reaches it."""
    reached: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/latest/meta-data", reached


async def test_no_door_fetches_a_link_or_reads_a_file(prosody: XmppServer, tmp_path: Path) -> None:
    """SSRF and reading of files: links are passed on as they are, and other addresses than those of the web are refused."""
    (tmp_path / "secret.txt").write_text("xylophone")
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http, trap() as (url, reached):
        files = (f"file://{tmp_path}/secret.txt", f"{tmp_path}/secret.txt", "gopher://127.0.0.1/x", "\\\\host\\share")
        for link in (url, *files):
            chat = {"type": "image_url", "image_url": {"url": link}}
            inputs = [{"type": "input_file", "file_url": link}, {"type": "input_image", "image_url": link}]
            message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"url": link}]}
            push = {"taskPushNotificationConfig": {"url": link}}
            replies = [
                await http.post("/v1/chat/completions", json=of_user(running, [chat])),
                *[
                    await http.post("/v1/responses", json={"model": running.name(), "input": [of_role([each])]})
                    for each in inputs
                ],
                await running.rpc(http, running.name(), "SendMessage", {"message": message}),
                await running.rpc(http, running.name(), "SendMessage", {**immediate("x"), "configuration": push}),
                await running.ask_mcp(http, link, "", running.name()),
                await running.post_event(http, link),
            ]
            assert not any("xylophone" in reply.text for reply in replies)
            if link != url:
                assert [reply.status_code for reply in replies[:3]] == [400] * 3
            assert all("error" in reply.json() for reply in replies[(3 if link != url else 4) : 5])
        for path in ("/files/../../secret.txt", "/files/%2e%2e/secret.txt", f"/files/x/{tmp_path}/secret.txt"):
            assert "xylophone" not in (await http.get(path)).text
        await running.check_doors()
        assert reached == []
        attached = {each["url"] for payload in Desk.payloads for each in payload.get("attachments", ())}
        assert attached == {url}


def of_role(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def of_user(running: AllDoors, content: Any) -> dict[str, Any]:
    return {"model": running.name(), "messages": [of_role(content)]}


# Bodies


DEEP = b"[" * 200_000
BODIES = {
    "deep list": DEEP,
    "deep object": b'{"a":' * 100_000,
    "huge number": b'{"model": 1' + b"0" * 100_000 + b"}",
    "infinite": b'{"model": 1e999, "messages": NaN, "params": -Infinity}',
    "half of a pair": b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "no UTF-8": b'{"model": "\xff\xfe"}',
    "a mark first": b"\xef\xbb\xbf{}",
    "UTF-16": '{"model": "x"}'.encode("utf-16"),
    "NUL": b"\0" * 1000,
    "nothing": b"",
    "null": b"null",
    "many keys": b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}",
    "a list of calls": b"[" + b",".join([b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask"}'] * 5000) + b"]",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_hostile_body_is_refused_and_each_door_goes_on(prosody: XmppServer, tmp_path: Path, body: bytes) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        name = running.name()
        for path in ("/v1/chat/completions", "/v1/responses", f"/a2a/{name}", f"/a2a/{name}/message:send", "/mcp"):
            headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            reply = await http.post(path, content=body, headers=headers | {"A2A-Version": "1.0"})
            assert reply.status_code < 500, (path, reply.text)
            assert reply.status_code >= 400 or "error" in reply.json(), (path, reply.text)
        async with running.http() as open_http:
            reply = await open_http.post("/webhooks/ci", content=body, headers=running.sign(body, "m"))
            assert reply.status_code in (202, 400, 413), reply.text
        await running.check_doors()


@pytest.mark.parametrize("text", ["\0", "\ud800", "\u202e/forget me", "x" * 300_000, "'; DROP TABLE inbox; --", "{{7*7}}"])
async def test_a_hostile_text_is_a_text(prosody: XmppServer, tmp_path: Path, text: str) -> None:
    async with run_all_doors(prosody, tmp_path) as running:
        for door in DOORS:
            async with running.http("" if door == "webhook" else "website") as http:
                try:
                    reply = await getattr(running, f"ask_{door}")(http, text, "", running.name())
                except UnicodeEncodeError:
                    continue
            assert reply.status_code < 500, (door, reply.text[:500])
        await running.check_doors()


# Ids


async def test_no_id_of_one_person_opens_anything_for_another_at_any_door(prosody: XmppServer, tmp_path: Path) -> None:
    """Keys, people below a key, and a webhook: conversations, requests, tasks, responses, answers, and ids of other doors."""
    people = {"website": ("website", ""), "shop": ("shop", ""), "editor": ("editor", "")}
    people |= {user: ("front", user) for user in ("ada@example.org", "ben@example.org")}
    tries = 0
    async with run_all_doors(prosody, tmp_path) as running:
        name, made = running.name(), {}
        for who, (key, user) in people.items():
            headers = {"X-Forwarded-User": user} if user else {}
            async with running.http(key, **headers) as http:
                secret = f"remember {secrets.token_hex(8)}"
                named = {"X-Conversation-Id": "shared", "Idempotency-Key": "shared"}
                response = await http.post("/v1/responses", json={"model": name, "input": secret}, headers=named)
                task = (await running.ask_a2a(http, secret, "shared", name, "shared")).json()["result"]["task"]
                tool = await running.ask_mcp(http, secret, "shared", name, request_id="shared")
                assert response.status_code == tool.status_code == 200
                made[who] = (secret, [response.json()["id"], response.headers["x-request-id"], task["id"]])
        async with running.http() as http:
            event = (await running.post_event(http, "remember a delivery", "shared")).json()
            await running.fetch_answer(http, event["answer"])
        made["ci"] = ("remember a delivery", [event["request_id"], event["answer"].rpartition("/")[2]])
        assert len(Desk.seen) == 3 * len(people) + 1  # the same names, and each a request of its own
        for who, (key, user) in people.items():
            headers = {"X-Forwarded-User": user} if user else {}
            async with running.http(key, **headers) as http:
                for owner, (secret, ids) in made.items():
                    if owner == who:
                        continue
                    word = secret.removeprefix("remember ")
                    for ident in [each for one in ids for each in (one, f"resp_{one.replace('-', '')}", one.upper())]:
                        later = {"model": name, "input": "recall", "previous_response_id": ident}
                        replies = [
                            await http.get(f"/v1/responses/{ident}"),
                            await http.post(f"/v1/responses/{ident}/cancel"),
                            await http.post("/v1/responses", json=later),
                            await running.rpc(http, name, "GetTask", {"id": ident}),
                            await running.rpc(http, name, "CancelTask", {"id": ident}),
                            await running.mcp(
                                http, "tools/call", {"name": f"{name}_chat", "arguments": {"request_id": ident[:80]}}
                            ),
                            await http.get(f"/webhooks/answers/{ident}x"),
                            await http.get(f"/files/{ident}/x"),
                        ]
                        assert [reply.status_code for reply in replies[:3]] == [404, 404, 400]
                        assert "result" not in replies[3].json()
                        assert "result" not in replies[4].json()
                        assert replies[5].json()["result"]["isError"]
                        assert {reply.status_code for reply in replies[6:]} <= {404, 429}
                        assert not any(word in reply.text for reply in replies)
                        tries += len(replies)
                for door in WITH_KEYS:
                    answer = await running.ask(door, key, "recall", thread="shared", user=user)
                    assert made[who][0] in answer.text
                    assert not any(secret in answer.text for owner, (secret, _) in made.items() if owner != who), answer
                    tries += 1
        recalled = await running.ask("webhook", "", "recall")
        assert not any(made[who][0] in recalled.text for who in people)
    assert tries >= 50


# A key for a person


COMMANDS = ("/help", "/pause", "/forget me yes", "/export", "/admit eve@example.org", "/quotas", "/end all", "/web", "/console")


async def test_the_key_of_an_operator_runs_no_command_and_reads_nothing_of_theirs(prosody: XmppServer, tmp_path: Path) -> None:
    account = await prosody.account()
    async with (
        StockClient(*account, prosody) as boss,
        run_all_doors(prosody, tmp_path, operator=account[0]) as running,
    ):
        told = str((await boss.answer())["body"])
        assert "made the key editor" in told
        assert "remember xylophone" in await boss.ask("remember xylophone", running.desk)
        for door in WITH_KEYS:
            for command in COMMANDS:
                answer = await running.ask(door, "editor", command)
                assert f"done: {command}" in answer.text, answer
        async with running.http("editor") as http:  # as a program marks a command that it sends by XMPP
            marked: dict[str, Any] = {"metadata": {COMMAND_METADATA: True}}
            assert "done: /pause" in (await running.ask_a2a(http, "/pause", "", running.name(), **marked)).text
            chat = {**of_user(running, "/pause"), **marked, COMMAND_METADATA: True}
            assert "done: /pause" in (await http.post("/v1/chat/completions", json=chat)).text
        for door in WITH_KEYS:
            answer = await running.ask(door, "editor", "recall")
            assert (answer.status, "xylophone" in answer.text) == (200, False), answer
            await running.ask(door, "editor", f"remember what {door} said")
        status = await running.platform.status()
        assert not any(agent.is_paused for agent in status.agents)
        recalled = await boss.ask("recall", running.desk)
        assert "xylophone" in recalled
        assert "said" not in recalled
        assert {person for person, _ in Desk.seen} == {account[0], "editor@callers.invalid"}


async def test_nothing_that_a_caller_sends_is_an_approval(prosody: XmppServer, tmp_path: Path) -> None:
    account = await prosody.account()
    async with (
        StockClient(*account, prosody) as boss,
        run_all_doors(prosody, tmp_path, operator=account[0]) as running,
        running.http("website") as http,
    ):
        await boss.answer()  # of the key
        made = await http.post("/v1/responses", json={"model": running.name(), "input": "pay", "background": True})
        code = code_of([str((await boss.answer())["body"])])
        for door, key in product(WITH_KEYS, ("website", "editor")):
            for text in (f"/approve {code}", f"/answer {code} yes", "yes", "approve"):
                await running.ask(door, key, text)
        await running.ask("webhook", "", f"/approve {code}")
        [approval] = await running.call("approvals.list")
        assert approval.state == "open"
        assert (await http.get(f"/v1/responses/{made.json()['id']}")).json()["status"] == "in_progress"
        boss.send(f"/approve {code}", running.desk)
        found = await running.fetch_response(http, made.json()["id"])
        assert found["output"][-1]["content"][0]["text"].endswith("paid")


async def test_the_quota_of_a_person_counts_what_their_key_asks_by_any_door(prosody: XmppServer, tmp_path: Path) -> None:
    account, limited = await prosody.account(), {"person": {"user": {"messages_per_minute": 3}}}
    async with (
        StockClient(*account, prosody) as alice,
        run_all_doors(prosody, tmp_path, quotas=limited) as running,
    ):
        issued = await running.call("keys.create", name="laptop", agents=[running.desk], account=account[0])
        running.keys["laptop"] = issued.secret
        assert "made the key laptop" in str((await alice.answer())["body"])
        assert await alice.ask("one", running.desk) == "done: one"
        assert (await running.ask("openai", "laptop", "two")).status == 200
        assert "done: three" in (await running.ask("a2a", "laptop", "three")).text
        async with running.http("laptop") as http:
            chat = await running.ask_openai(http, "four", "", running.name())
            assert (chat.status_code, int(chat.headers["retry-after"]) > 0) == (429, True)
            task = (await running.ask_a2a(http, "four", "", running.name())).json()["result"]["task"]
            assert (task["status"]["state"], task["metadata"]["retry_after_s"] > 0) == ("TASK_STATE_REJECTED", True)
            called = (await running.ask_mcp(http, "four", "", running.name())).json()["result"]
            assert (called["isError"], called["_meta"]["ai.coreason/code"]) == (True, 429)
        assert "done" not in await alice.ask("four", running.desk)
        assert (await running.ask("openai", "website", "mine")).status == 200
        assert [query for _, query in Desk.seen] == ["one", "two", "three", "mine"]


async def test_requests_of_one_conversation_are_answered_in_their_order(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running:
        first = asyncio.create_task(running.ask("openai", "website", "hold", thread="t"))
        await eventually(lambda: len(Desk.seen) == 1)
        later = []
        async with running.http("website") as http:
            body = {"model": running.name(), "input": "", "background": True, "conversation": "t"}
            for number in range(5):
                reply = await http.post("/v1/responses", json={**body, "input": f"later {number}"})
                assert reply.json()["status"] == "in_progress"
                later.append(reply.json()["id"])
            assert [query for _, query in Desk.seen] == ["hold"]
            Desk.release.set()
            assert (await first).status == 200
            for ident in later:
                await running.fetch_response(http, ident)
        assert [query for _, query in Desk.seen] == ["hold", *(f"later {number}" for number in range(5))]


async def test_the_files_of_a_person_are_deleted_with_them(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http() as http:
        picture = b"\x89PNG\r\n\x1a\n1"
        for key in ("website", "shop", "editor"):
            assert (await running.ask_openai_with_picture(key, picture)).status_code == 200
        links = [payload["attachments"][0]["url"] for payload in Desk.payloads]
        assert len(set(links)) == 3
        for person, left in (("website@callers.invalid", [1, 2]), ("boss@localhost", [1])):
            assert (await running.call("people.delete", person=person)).is_complete
            statuses = [(await http.get(link)).status_code for link in links]
            assert [number for number, status in enumerate(statuses) if status == 200] == left


# What "accepted" means


async def test_nothing_is_accepted_before_it_is_durable(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        await running.check_doors()
        database = running.platform.database
        assert database is not None
        name, done = running.name(), len(Desk.seen)
        ways: tuple[Callable[[], Coroutine[Any, Any, httpx.Response]], ...] = (
            lambda: running.post_event(http, "one", "one"),
            lambda: running.rpc(http, name, "SendMessage", immediate("two")),
            lambda: http.post("/v1/responses", json={"model": name, "input": "three", "background": True}),
        )
        for way, status in zip(ways, (202, 200, 200), strict=True):
            with closing(sqlite3.connect(database.name, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # so that nobody else can write
                asking = asyncio.create_task(way())
                await eventually(lambda: database.writes.has_writes)
                for _ in range(3):
                    assert (await http.get("/v1/models")).status_code == 200
                assert not asking.done()
            assert (await asking).status_code == status
        await eventually(lambda: len(Desk.seen) == done + len(ways))


# Logs


def test_no_secret_of_a_door_is_in_the_log(tmp_path: Path) -> None:
    """Keys, also wrong ones, signatures, links to answers and files, the user of a front end, and what they write."""
    [port] = find_free_ports(1)
    agent = {"jid": "desk@localhost", "agent": "tests.support.all_doors:Desk", "doors": list(DOORS)}
    values = {"server": {"mode": "embedded"}, "web": {"port": port}, "agents": [agent]}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "platform.yaml").write_text(json.dumps(values))
    created = [
        run_command(*command, cwd=tmp_path).stdout.strip()
        for command in (
            ("keys", "create", "website", "--agent", "desk"),
            ("keys", "create", "front", "--agent", "desk", "--users-by-header"),
            ("webhooks", "create", "ci", "desk"),
        )
    ]
    keys, secret = dict(zip(("website", "front"), created, strict=False)), created[2]
    user, text, wrong = "ada@example.org", "marzipan", f"sc_{'w' * 43}"
    hidden = [*created, wrong, user, text]

    async def use(running: AllDoors) -> None:
        for door in DOORS:
            assert (await running.ask(door, "website", f"{text} by {door}")).status == 200
            if door != "webhook":
                assert (await running.ask(door, "front", text, user=user)).status == 200
                assert (await running.ask(door, wrong, text)).status == 401
        async with running.http() as http:
            event = await running.post_event(http, text)
            hidden.extend([event.json()["answer"].rpartition("/")[2], event.request.headers["webhook-signature"]])
            await http.get(event.json()["answer"])
            await http.get(event.json()["answer"][:-1] + "x")
            await http.post("/webhooks/ci", json={}, headers={**running.sign(b"x", "m"), "webhook-id": text})
            await http.get(f"/v1/models?api_key={keys['website']}&q={text}")
            await http.get(f"/{text}", headers={"Authorization": keys["website"], "Cookie": keys["website"]})
        picture = await running.ask_openai_with_picture("website", b"\x89PNG\r\n\x1a\n1")
        content = picture.json()["choices"][0]["message"]["content"]
        hidden.append(content.partition("/files/")[2].partition("/")[0])

    with run_in_background("up", "-vv", cwd=tmp_path, until="^Ready") as platform:
        running = AllDoors(None, WebSettings(port=port), "desk@localhost", "", "", "", keys, secret)  # type: ignore[arg-type] # it runs elsewhere
        asyncio.run(use(running))
        code, output, log = platform.stop()
    assert (code, "has a wrong key" in log) == (0, True)
    assert all(len(each) >= 8 for each in hidden)
    assert [each for each in hidden if each in output + log] == []
