"""Deliveries over a real server: what is accepted, what the agent gets, and the answer."""

from __future__ import annotations

import json
from urllib.parse import urlencode, urlsplit

import pytest

from spade_coreason.contracts import Accept, ErrorCode, Interceptor, ReceivedRequest, Refuse
from spade_coreason.domain.quotas import Quota, Quotas
from spade_coreason.storage import WebhookKind
from spade_coreason.testing import Policy
from tests.support.door_agents import Desk
from tests.support.doors import ask
from tests.support.errors import ExpectedErrors
from tests.support.wait import eventually
from tests.support.webhooks import serve_webhooks, sign


async def test_a_signed_event_starts_a_turn_and_its_answer_is_at_an_address(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create("ci")
        reply = await server.send(webhook, {"type": "build.done", "action": "data", "query": 7})
        assert reply.status == 202
        told = json.loads(reply.body)
        assert told["answer"] == reply.headers["location"]
        assert told["answer"].startswith(f"{server.settings.public_url}/webhooks/answers/")
        answer = await server.answer(told["answer"])
    assert answer == {
        "request_id": told["request_id"],
        "state": "completed",
        "text": "done: build.done data",
        "data": [{"title": "Today", "data": {"celsius": 12}}],
    }
    [request] = desk.requests
    assert request.payload == {"query": "build.done data", "event": {"type": "build.done", "action": "data", "query": 7}}
    assert request.metadata["webhook"] == {
        "name": "ci",
        "kind": "standard",
        "event": "build.done",
        "content_type": "application/json",
    }
    assert desk.seen == [("hook-ci@callers.invalid", "build.done data")]


async def test_an_event_of_github_has_a_readable_line_and_its_type(url: str) -> None:
    desk = Desk()
    event = {"action": "opened", "repository": {"full_name": "octo/hello"}, "sender": {"login": "ada\n\u202eevil"}}
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create("repo", "github", thread="builds")
        as_json = await server.send(webhook, event)
        form = urlencode({"payload": json.dumps({**event, "number": 2})}).encode()
        as_form = await server.send(webhook, form, Content_Type="application/x-www-form-urlencoded")
        for reply in (as_json, as_form):
            assert (await server.answer(reply.headers["location"]))["state"] == "completed"
    assert [query for _, query in desk.seen] == ["push opened in octo/hello by ada evil"] * 2
    assert desk.requests[1].payload["event"]["number"] == 2
    assert desk.requests[0].metadata["webhook"]["event"] == "push"


@pytest.mark.parametrize(
    ("content_type", "body", "query"),
    [
        ("text/plain", "All tests pass ✓", "All tests pass ✓"),
        ("text/plain; charset=utf-8", "", "an event of the webhook ci"),
        ("application/json", '{"query": "what is next?"}', "what is next?"),
        ("application/cloudevents+json", '["a list"]', "an event of the webhook ci"),
        ("application/x-www-form-urlencoded", "just a text", "just a text"),
        ("application/json", '{"query": "/forget me"}', "/forget me"),
    ],
)
async def test_the_query_is_a_text_or_a_line_about_the_event(url: str, content_type: str, body: str, query: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        reply = await server.send(await server.create(), body.encode(), Content_Type=content_type)
        await server.answer(reply.headers["location"])
    assert desk.seen[0][1] == query


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"a": NaN}', b'{"a": 1e999}', b"[" * 5000, b'{"a": 1' + b"0" * 5000 + b"}"])
async def test_a_body_that_is_no_json_is_refused(url: str, body: bytes) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        assert (await server.send(await server.create(), body)).status == 400
        assert (await server.send(await server.create("repo", "github"), body)).status == 400
    assert desk.seen == []


async def test_a_ping_of_github_is_answered_without_a_turn(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create("repo", "github")
        for event in ("ping", "push"):  # the header is not signed
            reply = await server.send(webhook, {"zen": "Keep it logically awesome.", "hook_id": 1}, X_GitHub_Event=event)
            assert (reply.status, json.loads(reply.body)) == (200, {"status": "pong"})
        assert (await server.send(webhook, {"zen": "x"}, X_GitHub_Event="ping")).status == 202
    assert len(desk.seen) == 1


async def test_an_answer_is_awaited_and_a_failure_is_told_without_its_details(
    url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a secret of the agent")
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create()
        address = (await server.send(webhook, {"query": "wait"}, "a")).headers["location"]
        waiting = await server.get(address)
        assert (waiting.status, json.loads(waiting.body)["state"], waiting.headers["retry-after"]) == (202, "running", "2")
        desk.release.set()
        assert (await server.answer(address))["text"] == "done: wait"
        failed = await server.answer((await server.send(webhook, {"query": "fail"}, "b")).headers["location"])
        assert (failed["state"], failed["error"]["code"]) == ("failed", 500)
        assert "secret" not in json.dumps(failed)
        streamed = await server.answer((await server.send(webhook, {"query": "stream"}, "c")).headers["location"])
        assert streamed["text"] == "one two three"


async def test_an_answer_is_found_after_a_restart_and_a_repeated_delivery_has_the_same_address(url: str) -> None:
    desk, body = Desk(), {"query": "once"}
    async with serve_webhooks(url, desk) as server:
        webhooks = [await server.create("ci"), await server.create("repo", "github")]
        first = [(await server.send(webhook, body)).headers["location"] for webhook in webhooks]
        answers = [await server.answer(address) for address in first]
        assert [(await server.send(webhook, body)).headers["location"] for webhook in webhooks] == first
    async with serve_webhooks(url, desk) as server:
        again = [(await server.send(webhook, body)).headers["location"] for webhook in webhooks]
        assert [urlsplit(address).path for address in again] == [urlsplit(address).path for address in first]
        assert [await server.answer(address) for address in again] == answers
    assert len(desk.seen) == 2


async def test_while_the_agent_does_not_run_an_event_is_sent_again_later(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhooks = [await server.create("ci"), await server.create("repo", "github")]
        address = (await server.send(webhooks[0], {"query": "x"}, "before")).headers["location"]
        await server.answer(address)
        await server.running.runtime.close_channels()
        for webhook in webhooks:
            reply = await server.send(webhook, {"query": "later"})
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert (await server.get(address)).status == 503
        await server.running.runtime.open_channels()
        for webhook in webhooks:
            assert (await server.send(webhook, {"query": "later"})).status == 202
        await eventually(lambda: len(desk.seen) == 3)


async def test_a_webhook_of_an_agent_without_the_door_is_not_served(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        agent = server.running.agent
        server.running.doors.add(agent.jid, agent.manifest, ["openai"])
        for kind in ("standard", "github"):
            reply = await server.send(await server.create(kind, kind), {"query": "x"})
            assert reply.status == 503
            assert "add `webhook` to its doors" in reply.body.decode()
    assert desk.seen == []


@pytest.mark.parametrize("kind", ["standard", "github"])
async def test_a_webhook_has_the_quota_of_a_person(url: str, kind: WebhookKind) -> None:
    desk, quotas = Desk(), Quotas(user=Quota(messages_per_minute=2))
    async with serve_webhooks(url, desk, Policy(quotas=quotas)) as server:
        webhook = await server.create("ci", kind)
        replies = [await server.send(webhook, {"number": number}, str(number)) for number in range(3)]
        assert [reply.status for reply in replies] == [202, 202, 429]
        assert int(replies[2].headers["retry-after"]) > 0
        other = await server.send(await server.create("other"), {"number": 3})
        assert other.status == 202
        # What was refused is not remembered, so that it can be sent again.
        assert sum((await server.ring.repository.count_bodies()).values()) == (2 if kind == "github" else 0)


async def test_a_revoked_webhook_accepts_nothing_and_its_answers_end(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create()
        address = (await server.send(webhook, {"query": "wait"})).headers["location"]
        await eventually(lambda: len(desk.seen) == 1)
        await server.revoke("ci")
        assert (await server.get(address)).status == 404
        assert (await server.send(webhook, {"query": "more"}, "2")).status == 401
        await server.running.runtime.runner.mailboxes.wait_until_idle()  # the turn was cancelled
    assert len(desk.seen) == 1


async def test_a_post_is_the_only_method_and_the_body_has_the_limit_of_the_server(url: str) -> None:
    async with serve_webhooks(url, Desk()) as server:
        webhook = await server.create()
        assert (await ask(server.settings, "/webhooks/ci", key=None)).status == 405
        size = server.settings.limits.body_bytes
        headers = [f"{name}: {value}" for name, value in sign(webhook, b"", "m", server.now()).items()]
        headers += ["Content-Type: text/plain", f"Content-Length: {size + 1}"]
        assert (await ask(server.settings, "/webhooks/ci", *headers, method="POST", key=None)).status == 413


async def test_an_answer_that_cannot_be_read_at_a_stop_is_to_be_fetched_later(url: str) -> None:
    async with serve_webhooks(url, Desk()) as server:
        address = (await server.send(await server.create(), {"query": "hello"})).headers["location"]
        assert (await server.answer(address))["state"] == "completed"
        await server.running.runtime.runner.drain(0)
        reply = await server.get(address)
        assert (reply.status, reply.headers["retry-after"]) == (202, "2")


async def test_an_event_that_an_interceptor_refuses_has_its_status(url: str) -> None:
    class NoEvents(Interceptor):
        def receive(self, request: ReceivedRequest) -> Accept | Refuse:
            return Refuse(ErrorCode.BAD_REQUEST, "Send something else.")

    async with serve_webhooks(url, Desk(), interceptors=[NoEvents()]) as server:
        reply = await server.send(await server.create(), {"query": "hello"})
        assert (reply.status, b"Send something else." in reply.body) == (400, True)
