"""What others may try with webhooks, over a real server."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

from sqlalchemy import delete

from spade_coreason.doors import WebhookRing
from spade_coreason.doors.webhooks.answers import AnswerAddress, make_token
from spade_coreason.doors.webhooks.signatures import sign_github, sign_standard
from spade_coreason.storage import DUPLICATE_DAYS, WebhookKind, decode_webhook_secret
from spade_coreason.storage.schema import inbox
from tests.support.door_agents import Desk, RunningDoors, make_caller
from tests.support.doors import Reply
from tests.support.errors import ExpectedErrors
from tests.support.webhooks import serve_webhooks, sign


def told(reply: Reply) -> tuple[int, bytes, set[str]]:
    """Return what an answer tells: its status, its body, and the names of its headers."""
    return reply.status, reply.body, set(reply.headers)


async def test_an_unknown_name_gets_the_same_answer_as_a_wrong_signature(url: str) -> None:
    async with serve_webhooks(url, Desk()) as server:
        webhooks = [await server.create("ci"), await server.create("repo", "github")]
        clock = await server.send(webhooks[0], b"x", at=server.now() - timedelta(hours=1))
        assert (clock.status, "clock" in json.loads(clock.body)["error"]["message"]) == (401, True)
        for webhook in webhooks:
            good = sign(webhook, b"x", "m", server.now())
            wrong = {**good, next(name for name in good if "ignature" in name): "v1,xxx"}
            old = {**good, "webhook-timestamp": "1700000000"} if webhook.kind == "standard" else wrong
            for headers in (wrong, old, {}):
                replies = [await server.post(name, headers, b"x") for name in (webhook.name, "nobody", "CI", "%ff")]
                assert len({(reply.status, reply.body) for reply in replies}) == 1
                assert replies[0].status == 401


async def test_a_replay_is_the_same_request_and_another_body_under_its_id_is_refused(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create()
        first = await server.send(webhook, {"query": "wait"})
        again = [await server.send(webhook, {"query": "wait"}) for _ in range(3)]
        assert [told(reply) for reply in again] == [told(first)] * 3
        assert (await server.send(webhook, {"query": "other"})).status == 409  # it runs
        desk.release.set()
        assert (await server.answer(first.headers["location"]))["text"] == "done: wait"
        assert (await server.send(webhook, {"query": "other"})).status == 409  # it is answered
        assert (await server.answer(first.headers["location"]))["text"] == "done: wait"
        server.offset = timedelta(minutes=6)
        old = await server.send(webhook, {"query": "wait"}, at=server.now() - server.offset)
        assert old.status == 401
    assert len(desk.seen) == 1


async def test_deliveries_of_the_same_event_at_once_run_once(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        for webhook in (await server.create("ci"), await server.create("repo", "github")):
            replies = await asyncio.gather(*(server.send(webhook, {"of": webhook.name}) for _ in range(12)))
            assert {reply.status for reply in replies} == {202}
            assert len({reply.headers["location"] for reply in replies}) == 1
            await server.answer(replies[0].headers["location"])
    assert len(desk.seen) == 2


async def test_a_signature_of_one_webhook_counts_for_no_other(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        kinds: list[tuple[str, WebhookKind]] = [("a", "standard"), ("b", "standard"), ("c", "github"), ("d", "github")]
        webhooks = [await server.create(name, kind) for name, kind in kinds]
        for signer in webhooks:
            headers = sign(signer, b"x", "m", server.now())
            for receiver in webhooks:
                status = (await server.post(receiver.name, headers, b"x")).status
                assert status == (202 if receiver is signer else 401)
        # The secret of one kind does not sign in the form of the other.
        both = {**sign(webhooks[2], b"y", "m", server.now()), **sign(webhooks[0], b"y", "m", server.now())}
        assert (await server.post("c", both, b"y")).status == 401
        # Nor has it its key: GitHub's form has no time, so it would get around the five minutes.
        for webhook in webhooks:
            key, timestamp = decode_webhook_secret(webhook.kind, webhook.secret), str(int(server.now().timestamp()))
            other_form = {"X-Hub-Signature-256": sign_github(key, b"z")}
            if webhook.kind == "github":
                signature = sign_standard(key, "m", timestamp, b"z")
                other_form = {"webhook-id": "m", "webhook-timestamp": timestamp, "webhook-signature": signature}
            assert (await server.post(webhook.name, other_form, b"z")).status == 401
    assert len(desk.seen) == 4
    assert len({owner for owner, _ in desk.seen}) == 4


async def test_a_changed_body_is_refused(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        for webhook in (await server.create("ci"), await server.create("repo", "github")):
            headers = {**sign(webhook, b'{"a": 1}', "m", server.now()), "Content-Type": "application/json"}
            for body in (b'{"a": 2}', b'{"a": 1} ', b'{"a":1}', b"", b'\xef\xbb\xbf{"a": 1}'):
                assert (await server.post(webhook.name, headers, body)).status == 401
    assert desk.seen == []


async def test_fifty_guesses_of_an_answer_find_nothing(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook, other = await server.create("ci"), await server.create("other")
        address = (await server.send(webhook, {"query": "x"})).headers["location"]
        await server.answer(address)
        token = urlsplit(address).path.rpartition("/")[2]
        request_id = UUID(json.loads((await server.send(webhook, {"query": "x"})).body)["request_id"])
        wrong = [
            token[:-1],
            token + "A",
            token[:-1] + "B",
            token.swapcase(),
            token[::-1],
            "",
            "x" * 75,
            "%20" * 75,
            "%c3%a4" * 75,
        ]
        wrong += [make_token(other.answer_key, AnswerAddress(webhook.id, request_id))]
        wrong += [make_token(other.answer_key, AnswerAddress(other.id, request_id))]
        wrong += [make_token(webhook.answer_key, AnswerAddress(webhook.id, UUID(int=request_id.int ^ 1)))]
        wrong += [token[:32] + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()[:43] for _ in range(50 - len(wrong))]
        statuses = {(await server.get(f"/webhooks/answers/{guess}")).status for guess in wrong}
        assert statuses <= {401, 404, 429}
        assert 429 in statuses
        # One that is right is never refused for the guesses of others.
        assert (await server.get(address)).status == 200
        assert (await server.send(webhook, {"query": "y"}, "next")).status == 202


async def test_a_key_and_another_webhook_do_not_reach_the_request(url: str) -> None:
    async with serve_webhooks(url, Desk()) as server:
        webhook = await server.create("ci")
        await server.create("other")
        event = json.loads((await server.send(webhook, {"query": "x"})).body)
        await server.answer(event["answer"])
        agent = server.running.agent
        for name in ("website", "hook-other", "ci", "hook-", "hook-ci.x"):
            caller = make_caller(name)
            assert await agent.backend.fetch(caller, UUID(event["request_id"])) is None
            assert await agent.requests.find_state(caller, UUID(event["request_id"])) is None


async def test_wrong_signatures_of_an_address_are_limited_and_right_ones_go_on(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create()
        statuses = [(await server.post("ci", {}, b"x")).status for _ in range(40)]
        assert statuses == [401] * 30 + [429] * 10
        assert int((await server.post("ci", {}, b"x")).headers["retry-after"]) > 0
        assert (await server.send(webhook, {"query": "x"})).status == 202


async def test_both_secrets_count_until_the_end_of_the_one_before(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        before = await server.create()
        after = await server.rotate("ci", timedelta(hours=1))
        assert [(await server.send(one, {}, f"m{number}")).status for number, one in enumerate((before, after))] == [202, 202]
        server.offset = timedelta(hours=2)
        assert [(await server.send(one, {}, f"n{number}")).status for number, one in enumerate((before, after))] == [401, 202]
        last = await server.rotate("ci", timedelta())
        assert [(await server.send(one, {}, f"o{number}")).status for number, one in enumerate((after, last))] == [401, 202]


async def test_a_body_of_github_starts_one_turn_as_long_as_its_secret_lives(url: str) -> None:
    desk = Desk()
    async with serve_webhooks(url, desk) as server:
        webhook = await server.create("repo", "github")
        address = (await server.send(webhook, {"number": 1})).headers["location"]
        await server.answer(address)
        for delivery in ("one", "another"):
            again = await server.send(webhook, {"number": 1}, X_GitHub_Delivery=delivery)
            assert again.headers["location"] == address
        assert (await server.send(webhook, {"number": 1}, X_GitHub_Event="release")).status == 409
        server.offset = timedelta(days=DUPLICATE_DAYS + 1)
        await _forget_inbox(server.running)
        # A request counts as running until its last caller has left, a moment after that got the answer.
        assert (await server.wait_for(address)).status == 404
        assert (await server.send(webhook, {"number": 1})).status == 409
        server.offset = timedelta(days=400)
        assert (await server.send(webhook, {"number": 1})).status == 409
        assert len(desk.seen) == 1
        # With a new secret the same body is an event of its own, once the secret before does not count.
        rotated = await server.rotate("repo", timedelta(hours=1), "github")
        assert (await server.send(rotated, {"number": 1})).status == 409
        assert (await server.send(webhook, {"number": 1})).status == 409
        await server.rotate("repo", timedelta(), "github")
        last = await server.rotate("repo", timedelta(), "github")
        assert (await server.send(last, {"number": 1})).status == 202
        assert (await server.send(webhook, {"number": 2})).status == 401


async def _forget_inbox(running: RunningDoors) -> None:
    """Delete all requests, as the platform does after seven days."""
    await running.runtime.parts.repository.database.write(lambda connection: connection.execute(delete(inbox)) and None)


async def test_a_webhook_that_cannot_remember_more_refuses_and_tells_the_operator(
    url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot remember more")
    desk = Desk()
    async with serve_webhooks(url, desk, max_bodies=3) as server:
        webhook = await server.create("repo", "github")
        statuses = [(await server.send(webhook, {"number": number})).status for number in range(6)]
        assert statuses == [202, 202, 202, 507, 507, 507]
        assert (await server.send(webhook, {"number": 1})).status == 202  # a repeated one
        assert server.ring.full == ("repo",)
        restarted = WebhookRing(server.running.runtime.parts.repository.database, max_bodies=3)
        await restarted.load()
        assert restarted.full == ("repo",)
        rotated = await server.rotate("repo", timedelta(hours=1), "github")
        assert not server.ring.full
        assert (await server.send(rotated, {"number": 4})).status == 202
        assert (await server.send(webhook, {"number": 5})).status == 507  # signed with the secret of before
        assert await server.ring.repository.count_bodies() == {webhook.id: 1}
