"""Quotas: what one person, room or domain, and everybody together, may use of an agent."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, Peers, ResponseHandler, SessionHandle, agent
from spade_coreason.concurrency import RATE_INTERVAL_S
from spade_coreason.contracts import ErrorCode, Refuse
from spade_coreason.domain.channel_kinds import PERSON, PROGRAM, ROOM, ChannelKind
from spade_coreason.domain.duplicates import Evidence
from spade_coreason.domain.messages import RequestContext
from spade_coreason.domain.quotas import Quota, Quotas, Role
from spade_coreason.exceptions import PeerRefusedError
from spade_coreason.runtime.access.admission import MAX_COMMANDS_PER_MINUTE
from spade_coreason.runtime.mailboxes.limits import QuotaLimit
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import AgentRepository, Database
from spade_coreason.testing import AgentTester, PlatformLimits, Policy
from tests.support.clock import Clock, LoopClock
from tests.support.databases import SAME_STANZA, on_both_databases, open_without_sync
from tests.support.requests import build_incoming
from tests.support.wait import eventually

AGENT, OTHER = "agent@localhost", "other@localhost"
ALICE, BOB = "alice@localhost", "bob@localhost"
NOW = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)
UNLIMITED = Quotas(user=Quota(), room=Quota(), domain=Quota(), total=Quota())


class Meter:
    """A `QuotaLimit` with a clock that the test sets, and the messages that it is asked about."""

    def __init__(self, database: Database, quotas: Quotas) -> None:
        self.clock = Clock(NOW)
        self.seconds = 1000.0
        self.repository = AgentRepository(database, AGENT)
        self.limit = QuotaLimit(self.repository, quotas, 8, self.clock, lambda: self.seconds)

    async def load(self) -> None:
        self.limit.load(await self.repository.load_agent())

    def send(self, owner: str = ALICE, text: str = "x", kind: ChannelKind = PERSON, root: str = "") -> Refuse | None:
        request = build_incoming(text, owner, kind, context=RequestContext(root_sender=root))
        verdict = self.limit.receive(request)
        return verdict if isinstance(verdict, Refuse) else None

    def send_many(self, count: int, **request: Any) -> list[bool]:
        return [self.send(**request) is None for _ in range(count)]

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.clock.advance(seconds=seconds)


def for_user(**quota: int) -> Quotas:
    return replace(UNLIMITED, user=Quota(**quota))


async def test_a_minute_of_messages_may_come_at_once_and_then_they_flow_in(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_minute=6))
    assert meter.send_many(8) == [True] * 6 + [False] * 2
    meter.pass_time(9.9)
    assert meter.send() is not None
    meter.pass_time(0.1)
    assert meter.send_many(2) == [True, False]
    meter.pass_time(3600)
    assert meter.send_many(8) == [True] * 6 + [False] * 2


async def test_a_refusal_says_the_limit_and_when_to_go_on(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_minute=2))
    meter.send_many(2)
    refusal = meter.send()
    assert refusal == Refuse(
        ErrorCode.TOO_MANY_REQUESTS, "You have reached the limit of 2 messages a minute. Write again in 30 s.", 30
    )
    meter.pass_time(refusal.retry_after_s or 0)
    assert meter.send() is None


async def test_a_person_is_told_once_until_a_message_is_accepted_again(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_minute=1))
    meter.send()
    assert [verdict.tells_people for verdict in (meter.send(), meter.send()) if verdict is not None] == [True, False]
    meter.pass_time(60)
    assert meter.send() is None
    verdict = meter.send()
    assert verdict is not None
    assert verdict.tells_people


async def test_bytes_are_limited_and_a_longer_message_takes_the_whole_minute(database: Database) -> None:
    meter = Meter(database, for_user(bytes_per_minute=100))
    assert meter.send(text="é" * 30) is None  # 60 bytes
    refusal = meter.send(text="é" * 30)
    assert refusal is not None
    assert (refusal.text, refusal.retry_after_s) == (
        "You have reached the limit of 100 bytes a minute. Write again in 12 s.",
        12,
    )
    assert meter.send(text="x" * 40) is None
    meter.pass_time(60)
    assert meter.send(text="x" * 10_000) is None
    assert meter.send() is not None
    meter.pass_time(60)
    assert meter.send() is None


async def test_a_day_of_messages_or_bytes_ends_at_midnight_utc(database: Database) -> None:
    for quota in ({"messages_per_day": 2}, {"bytes_per_day": 2}):
        meter = Meter(database, for_user(**quota))
        assert meter.send_many(3) == [True, True, False]
        refusal = meter.send()
        assert refusal is not None
        assert refusal.retry_after_s == 3600
        assert "a day. Write again in 60 min." in refusal.text
        meter.pass_time(3600)
        assert meter.send_many(3) == [True, True, False]


async def test_domain_and_total_count_everybody(database: Database) -> None:
    meter = Meter(database, replace(UNLIMITED, domain=Quota(messages_per_minute=2), total=Quota(messages_per_minute=3)))
    assert [meter.send(who) is None for who in (ALICE, BOB, "eve@localhost")] == [True, True, False]
    refusal = meter.send(BOB)
    assert refusal is not None
    assert refusal.text.startswith("Your domain has reached the limit of 2 messages a minute.")
    assert [meter.send(who) is None for who in ("x@one.example", "x@two.example")] == [True, False]
    refusal = meter.send("y@two.example")
    assert refusal is not None
    assert refusal.text.startswith("All people together have reached")


async def test_many_senders_of_a_domain_get_exactly_its_quota_together(database: Database) -> None:
    meter = Meter(database, replace(UNLIMITED, domain=Quota(messages_per_minute=1000, messages_per_day=1500)))
    assert sum(meter.send(f"{number % 200}@localhost") is None for number in range(4000)) == 1000
    meter.pass_time(60)
    assert sum(meter.send(f"{number % 200}@localhost") is None for number in range(4000)) == 500


async def test_a_clock_that_was_days_ahead_does_not_stop_the_days(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_day=2))
    meter.clock.advance(days=1000)
    meter.pass_time(1)
    assert meter.send_many(3) == [True, True, False]
    meter.clock.advance(days=-1000)
    meter.pass_time(1)
    assert meter.send_many(3) == [True, True, False]
    meter.pass_time(3600)
    assert meter.send_many(3) == [True, True, False]
    meter.clock.advance(seconds=-60)  # back to the day before, and no new day
    meter.seconds += 1
    assert meter.send() is not None


async def test_a_message_does_not_exceed_the_bytes_of_a_day_unless_it_has_more_than_all_of_them(database: Database) -> None:
    meter = Meter(database, for_user(bytes_per_day=100))
    assert meter.send(text="x" * 60) is None
    refusal = meter.send(text="x" * 60)
    assert refusal is not None
    assert "the limit of 100 bytes a day" in refusal.text
    assert meter.send(text="x" * 40) is None
    meter.pass_time(3600)
    assert meter.send(text="x" * 1000) is None
    assert meter.send() is not None


async def test_a_refusal_counts_in_plain_english(database: Database) -> None:
    meter = Meter(database, for_user(bytes_per_day=1))
    meter.send()
    assert "the limit of 1 byte a day." in str(meter.send())


async def test_the_time_to_wait_is_rounded_up(database: Database) -> None:
    for minutes, text in ((-89, "3 hours"), (55, "5 min"), (57.5, "3 min"), (58.5, "90 s")):
        meter = Meter(database, for_user(messages_per_day=1))
        meter.clock.advance(minutes=minutes)
        meter.send()
        refusal = meter.send()
        assert refusal is not None
        assert f"Write again in {text}." in refusal.text


async def test_a_room_has_a_quota_of_its_own(database: Database) -> None:
    meter = Meter(database, replace(UNLIMITED, room=Quota(messages_per_minute=1)))
    assert meter.send_many(2, owner="tea@rooms.localhost", kind=ROOM) == [True, False]
    assert meter.send_many(5, owner=ALICE) == [True] * 5


async def test_a_new_nickname_is_no_new_person(database: Database) -> None:
    meter = Meter(database, replace(UNLIMITED, room=Quota(messages_per_minute=3)))
    nicknames = [meter.send(owner=f"tea@rooms.localhost/{number}") is None for number in range(3)]
    assert [*nicknames, meter.send(owner="tea@rooms.localhost/new") is None] == [True, True, True, False]
    assert meter.send(owner="tea@rooms.localhost", kind=ROOM) is not None
    assert meter.limit.usage_of("tea@rooms.localhost/0").messages == 3
    assert [used.holder for used in meter.limit.usage()] == ["", "rooms.localhost", "tea@rooms.localhost"]


async def test_operators_and_groups_have_quotas_of_their_own(database: Database) -> None:
    quotas = Quotas(
        user=Quota(messages_per_day=1),
        operator=Quota(),
        groups=(Role("staff", frozenset({BOB, "example.com"}), Quota(messages_per_day=3)),),
        domain=Quota(messages_per_day=5),
        total=Quota(),
        operators=frozenset({"root@localhost"}),
    )
    meter = Meter(database, quotas)
    assert meter.send_many(4, owner=BOB) == [True, True, True, False]
    assert meter.send_many(4, owner="eve@example.com") == [True, True, True, False]
    assert meter.send_many(2, owner=ALICE) == [True, False]
    # The domain has one message left, but an operator is not refused for it.
    assert meter.send_many(9, owner="root@localhost") == [True] * 9
    assert meter.send(owner="new@localhost") is not None
    assert meter.limit.usage_of(BOB).role == "staff"


@on_both_databases
async def test_the_counts_of_a_day_survive_a_restart_and_older_ones_are_deleted(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_day=10, messages_per_minute=100))
    await meter.load()
    meter.send_many(4, text="four")
    meter.send(BOB)
    await AgentRepository(database, AGENT).save_agent_value("any", 1)  # the next transaction has the counts
    again = Meter(database, for_user(messages_per_day=10))
    again.send()  # before the counts are loaded
    await again.load()
    assert again.limit.usage_of(ALICE).messages == 5
    assert again.limit.usage_of(BOB).messages == 1
    assert [(used.scope, used.holder, used.messages, used.bytes) for used in again.limit.usage()] == [
        ("total", "", 6, 18),
        ("domain", "localhost", 6, 18),
        ("person", ALICE, 5, 17),
        ("person", BOB, 1, 1),
    ]
    again.pass_time(3600)
    assert again.limit.usage_of(ALICE).messages == 0
    again.clock.now = datetime.now(UTC) + timedelta(days=1)
    await again.load()
    await AgentRepository(database, AGENT).save_agent_value("any", 1)
    assert (await AgentRepository(database, AGENT).load_agent()).find_message_counts() == []


@pytest.mark.parametrize("pause_s", [0.01, 2])
@on_both_databases
async def test_messages_are_counted_exactly_at_any_kill(database: Database, pause_s: float) -> None:
    meter = Meter(database, for_user(messages_per_day=1_000_000))
    await meter.load()
    for number in range(100):
        meter.send()
        await AgentRepository(database, AGENT).save_agent_value("any", number)  # the transaction of the message
        meter.pass_time(pause_s)
    killed = Meter(database, for_user(messages_per_day=1_000_000))
    await killed.load()
    assert killed.limit.usage_of(ALICE).messages == killed.limit.usage()[0].messages == 100


async def test_an_orderly_stop_stores_exact_counts(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/quotas.db"
    database = await open_without_sync(url)
    meter = Meter(database, for_user(messages_per_day=1_000_000))
    await meter.load()
    meter.send_many(100)
    await database.close()
    database = await open_without_sync(url)
    again = Meter(database, for_user(messages_per_day=1_000_000))
    await again.load()
    await database.close()
    assert again.limit.usage_of(ALICE).messages == 100


async def test_many_senders_take_a_limited_amount_of_memory(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_minute=1))
    await meter.load()
    meter.send()
    assert meter.send() is not None
    for number in range(100_000):
        meter.send(f"{number}@localhost")
    await AgentRepository(database, AGENT).save_agent_value("any", 1)  # the next transaction has the counts
    assert meter.send() is None  # forgotten
    assert len(meter.limit.usage(1_000_000)) == 100_002


@on_both_databases
async def test_a_start_that_is_retried_counts_nothing_twice_and_early_messages_count_too(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_day=10))
    await meter.load()
    meter.send_many(4)
    repository = AgentRepository(database, AGENT)
    await repository.save_agent_value("any", 1)  # the next transaction has the counts
    again = Meter(database, for_user(messages_per_day=10))
    again.send()  # before the counts are loaded
    await repository.save_agent_value("any", 2)
    await again.load()
    await again.load()
    assert again.limit.usage_of(ALICE).messages == 5
    await repository.save_agent_value("any", 3)
    counts = (await repository.load_agent()).find_message_counts()
    assert [count.messages for count in counts if count.kind == "person" and count.holder == ALICE] == [5]


async def test_a_new_day_reaches_a_count_that_made_room_for_others(database: Database) -> None:
    meter = Meter(database, for_user(messages_per_day=1))
    in_use = meter.limit.slots_of(ALICE, is_room=False)
    meter.send()
    for number in range(100_000):
        meter.send(f"{number}@localhost")
    meter.clock.now += timedelta(days=1)
    meter.pass_time(2)
    meter.send()
    assert meter.limit.slots_of(ALICE, is_room=False) is in_use
    assert meter.limit.usage_of(ALICE).messages == 1


async def test_turns_of_a_sender_that_is_forgotten_meanwhile_still_count(database: Database) -> None:
    meter = Meter(database, for_user(turns=1))
    running = meter.limit.slots_of(ALICE, is_room=False)
    assert running.acquire_nowait()
    for number in range(100_000):
        meter.send(f"{number}@localhost")
    assert not meter.limit.slots_of(ALICE, is_room=False).acquire_nowait()
    assert meter.limit.slots_of(BOB, is_room=False).acquire_nowait()


@agent
async def relay(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
    await response.markdown((await peers.ask(OTHER, "and you?")).text)


@agent
async def echo(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    await response.markdown(str(request.metadata.get("root_sender")))


def usage_by_holder(tester: AgentTester, jid: str) -> dict[str, int]:
    return {used.holder: used.messages for used in tester.runners[jid].control.quota_limit.usage()}


async def test_a_request_that_an_agent_passes_on_counts_for_the_person_it_goes_back_to() -> None:
    async with AgentTester(relay, peers={OTHER: echo}) as t:
        assert (await t.ask("x", user=ALICE)).text == ALICE
        assert (await t.say("x", user=BOB)) == [BOB]
        assert usage_by_holder(t, OTHER) == {"": 2, "localhost": 2, ALICE: 1, BOB: 1}


async def test_a_root_that_a_stranger_names_is_not_believed() -> None:
    async with AgentTester(echo) as t:
        for sender in ("mallory@localhost", "mallory@other.example"):
            request = build_incoming(
                "x", sender, PROGRAM, stanza_id="1", thread=None, content=sender, context=RequestContext(root_sender=ALICE)
            )
            t.gateways[AGENT].receive(request)
        await t.settled()
        assert usage_by_holder(t, AGENT) == {"": 1, "localhost": 1, "mallory@localhost": 1}


@pytest.mark.parametrize("root", ["a\0b@localhost", "@", "a@", "a b@localhost", "x" * 2000 + "@localhost"])
async def test_a_root_that_is_no_person_is_not_believed(root: str) -> None:
    async with AgentTester(echo, peers={OTHER: echo}) as t:
        request = build_incoming("x", OTHER, PROGRAM, stanza_id="1", thread=None, context=RequestContext(root_sender=root))
        t.gateways[AGENT].receive(request)
        await t.settled()
        assert usage_by_holder(t, AGENT) == {"": 1, "localhost": 1, OTHER: 1}


async def test_a_person_hears_once_when_to_go_on_and_a_program_each_time() -> None:
    policy = Policy(quotas=for_user(messages_per_day=2))
    async with AgentTester(echo, policy=policy, clock=Clock(NOW)) as t:
        assert [await t.say("x", user=ALICE) for _ in range(2)] == [["None"], ["None"]]
        for _ in range(3):
            t.send("x", user=ALICE)
        notice = await t.message(user=ALICE)
        assert "You have reached the limit of 2 messages a day. Write again in 60 min." in str(notice)
        await t.settled()
        assert t.unread(user=ALICE) == []
        await t.ask("x", user=BOB)
        await t.ask("x", user=BOB)
        for _ in range(2):
            with pytest.raises(PeerRefusedError) as refused:
                await t.ask("x", user=BOB)
            assert refused.value.retry_after_s == 3600
        await t.restart()
        with pytest.raises(PeerRefusedError):
            await t.ask("x", user=BOB)
        status = await t.say("/status", user=ALICE)
        assert "You have sent 2 of 2 messages today" in status[0]


async def test_the_count_of_a_person_who_is_forgotten_is_not_stored_again_at_the_end() -> None:
    async with AgentTester(echo, policy=Policy(quotas=for_user(messages_per_day=1000)), clock=Clock(NOW)) as t:
        await t.say("x", user=ALICE)
        await t.say("/forget me yes", user=ALICE)
        await t.restart()
        counts = (await t.runners[AGENT].repository.load_agent()).find_message_counts()
        assert counts
        assert [count for count in counts if count.kind == "person"] == []


async def test_status_shows_operators_what_everybody_has_used() -> None:
    policy = Policy(operators=frozenset({BOB}), quotas=for_user(messages_per_day=1))
    async with AgentTester(echo, policy=policy) as t:
        await t.say("x", user=ALICE)
        t.send("x", user=ALICE)
        assert "Everybody" not in (await t.say("/status", user=ALICE))[-1]
        [status] = await t.say("/status", user=BOB)
    assert status.endswith(
        "You have sent 0 messages today.\n\nAll people have sent 1 message (1 refused) today:\n"
        f"- localhost: 1 message (1 refused)\n- {ALICE}: 1 of 1 message (1 refused)\n\nI am working on no answer."
    )


async def test_turns_at_once_are_limited_for_a_person_a_room_and_a_domain() -> None:
    release = asyncio.Event()
    waiting = make_waiting_agent(release)

    quotas = replace(UNLIMITED, user=Quota(turns=2), domain=Quota(turns=3))
    async with AgentTester(waiting, policy=Policy(quotas=quotas), allow=("*",)) as t:
        for user in (ALICE, BOB, "eve@example.org"):
            for thread in ("1", "2", "3"):
                t.send("x", user=user, thread=thread)
        running = t.runners[AGENT]
        await eventually(lambda: assisting(running) == {ALICE: 2, BOB: 1, "eve@example.org": 2})
        release.set()
        await t.settled()
        assert len(t.unread(user=ALICE)) == len(t.unread(user=BOB)) == 3


def assisting(runner: Runner) -> dict[str, int]:
    counts = Counter(mailbox.sender for mailbox in runner.executor.context.mailboxes if mailbox.turn is not None)
    return dict(counts)


def make_waiting_agent(release: asyncio.Event) -> Any:
    """Return an agent that answers `done` once the event is set."""

    @agent
    async def waiting(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown("done")

    return waiting


async def test_of_large_messages_of_one_sender_four_may_wait_at_once() -> None:
    release = asyncio.Event()
    waiting = make_waiting_agent(release)

    async with AgentTester(waiting) as t:
        for number in range(7):
            t.send("x" * 300_000, user=ALICE, thread=f"large{number}")
            t.send("x", user=ALICE, thread=f"small{number}")
        t.send("x" * 300_000, user=BOB)
        await eventually(lambda: assisting(t.runners[AGENT]) == {ALICE: 11, BOB: 1})
        release.set()
        await t.settled()
        *notices, first = [str(message) for message in t.unread(user=ALICE)][:2]
        assert notices == ["You already have 4 long messages waiting. New ones are not accepted until one is answered."]
        assert first == "done"
        assert await t.say("x" * 300_000, user=ALICE) == ["done"]


async def test_the_large_messages_of_one_sender_begin_one_after_the_other() -> None:
    release = asyncio.Event()
    waiting = make_waiting_agent(release)

    async with AgentTester(waiting) as t:
        for user in (ALICE, BOB):  # their conversations are in memory now
            for number in range(3):
                t.send("x", user=user, thread=f"large{number}")
        await eventually(lambda: assisting(t.runners[AGENT]) == {ALICE: 3, BOB: 3})
        release.set()
        await t.settled()
        release.clear()
        with LoopClock() as clock:
            for number in range(3):
                t.send("x" * 300_000, user=ALICE, thread=f"large{number}")
                t.send("x" * 300_000, user=BOB, thread=f"large{number}")
            for begun in (1, 2, 3):
                await clock.wait_for(lambda begun=begun: assisting(t.runners[AGENT]) == {ALICE: begun, BOB: begun})  # type: ignore[misc]
                await clock.advance(0.1)
        release.set()
        await t.settled()


async def test_a_sender_whose_requests_are_refused_by_the_hundred_is_not_looked_at_for_a_minute() -> None:
    release = asyncio.Event()
    waiting = make_waiting_agent(release)

    def flood(user: str, count: int, kind: ChannelKind = PERSON, text: str = "x") -> None:
        for _ in range(count):
            number = str(next(numbers))
            request = build_incoming(text, user, kind, stanza_id=number, thread=None)
            t.gateways[AGENT].receive(request)

    numbers, limit = itertools.count(), 300
    async with AgentTester(waiting, policy=Policy(limits=PlatformLimits(queue=10))) as t:
        dropped = t.gateways[AGENT].dropped
        t.send("x", user=ALICE)
        await eventually(lambda: assisting(t.runners[AGENT]) == {ALICE: 1})
        with LoopClock() as clock:
            flood(ALICE, 10 + limit + 50)
            assert dropped["too many refused"] == 50
            flood(ALICE, 50, PROGRAM)  # each is told that it is refused
            flood(BOB, 10 + 50)
            assert dropped["too many refused"] == 50
            await clock.advance(RATE_INTERVAL_S)
            flood(BOB, 1)  # the first request has left the queue
            flood(ALICE, limit)
            assert dropped["too many refused"] == 50
            flood(ALICE, 50)
            assert dropped["too many refused"] == 100
            flood(BOB, 1, text="x" * limit * 4096)
            flood(BOB, 1)
            assert dropped["too many refused"] == 101
        release.set()
        await t.settled()
        notices = [str(message) for message in t.unread(user=ALICE)][:2]
        assert notices == [
            "This conversation already has 10 messages waiting. New ones are not accepted until some are answered.",
            "I had to refuse too many of your messages. I ignore what you send for a minute.",
        ]


async def test_commands_have_a_limit_of_their_own_and_work_beyond_the_quota() -> None:
    async with AgentTester(echo, policy=Policy(quotas=for_user(messages_per_day=1))) as t:
        await t.say("x")
        for _ in range(MAX_COMMANDS_PER_MINUTE):
            t.send("/status")
        await t.settled()
        assert len(t.unread()) == MAX_COMMANDS_PER_MINUTE
        t.send("/status")
        assert "the limit is 600 a minute" in str(await t.message())


async def test_duplicates_without_end_are_dropped_and_the_request_is_answered_once() -> None:
    async with AgentTester(echo, policy=Policy(limits=PlatformLimits(queue=10_000))) as t:
        await t.say("hello", user=ALICE)
        request = build_incoming("x", ALICE, stanza_id="1", thread=None, evidence=SAME_STANZA)
        commits = [t.gateways[AGENT].receive(request) for _ in range(4000)]
        assert commits.count(None) == 999
        await t.settled()
        _, notice = sorted(t.unread(user=ALICE), key=len)
        assert notice == "I had to refuse too many of your messages. I ignore what you send for a minute."
        assert t.gateways[AGENT].dropped["too many refused"] == 998


async def test_a_new_message_with_a_known_id_counts_for_the_quota() -> None:
    async with AgentTester(echo, policy=Policy(quotas=for_user(messages_per_day=3))) as t:
        await t.say("hello", user=ALICE)
        request = build_incoming("x", ALICE, stanza_id="1", thread=None)
        for server_id in "abcd":
            t.gateways[AGENT].receive(replace(request, evidence=Evidence(server_id)))
        await t.settled()
        *answers, notice = sorted(t.unread(user=ALICE), key=len)
        assert len(answers) == 2
        assert "3 messages a day" in notice
