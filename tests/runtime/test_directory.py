"""The list of another platform's directory: how long it is used, when it is asked for anew, and what a failure does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from spade_coreason import AgentCard, Capability, PeerAnswer, PeerError
from spade_coreason.domain.cards import dump_card, dump_state
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, PeerTimeoutError, PeerUnavailableError
from spade_coreason.runtime.peers.directory import (
    OFFLINE_S,
    STATE_INTERVAL_S,
    UNSEEN_LIST_AGE_S,
    AgentFinder,
    PlatformDirectory,
)

ME, DIRECTORY, OTHER = "me@localhost", "directory@example.org", "directory@example.com"


class Directory:
    """A directory that lists `cards`, and records the payloads with which it was asked."""

    def __init__(self, *cards: AgentCard, version: str = "v1") -> None:
        self.cards = list(cards)
        self.version = version
        self.payloads: list[Mapping[str, Any]] = []
        self.error: PeerError | None = None
        self.data: Any = None
        self.now = 1000.0
        self.release: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def ask(self, jid: str, payload: Mapping[str, Any], timeout_s: float) -> PeerAnswer:
        self.payloads.append(payload)
        self.asked.set()
        if self.release is not None:
            await self.release.wait()
        if self.error is not None:
            raise self.error
        is_known = payload.get("known") == self.version
        listed = {"states": [*map(dump_state, self.cards)]} if is_known else {"agents": [*map(dump_card, self.cards)]}
        data = {"version": self.version, **listed} if self.data is None else self.data
        return PeerAnswer(jid, "", ({"data": data},))

    def finder(self, *directories: str) -> AgentFinder:
        return AgentFinder(ME, PlatformDirectory(), directories=directories or (DIRECTORY,), clock=lambda: self.now)

    async def find(self, finder: AgentFinder, timeout_s: float = 10.0) -> list[AgentCard]:
        return await finder.find(self.ask, None, None, None, timeout_s)


def card(name: str, turns: int = 0, domain: str = "example.org") -> AgentCard:
    return AgentCard(f"{name}@{domain}", name, "", "1.0.0", (Capability("chat"),), True, turns)


async def test_a_list_is_asked_for_once_within_a_few_seconds() -> None:
    directory = Directory(card("a"))
    finder = directory.finder()
    assert await directory.find(finder) == await directory.find(finder) == [card("a")]
    assert directory.payloads == [{}]


async def test_later_only_the_state_of_the_agents_is_asked_for_while_the_version_stands() -> None:
    directory = Directory(card("a"), card("b"))
    finder = directory.finder()
    await directory.find(finder)
    directory.now += STATE_INTERVAL_S
    directory.cards = [card("a", turns=3)]
    found = await directory.find(finder)
    assert [(one.jid, one.turns_in_flight, one.is_online) for one in found] == [
        ("a@example.org", 3, True),
        ("b@example.org", 0, False),  # a state that is missing is that of an agent that has gone
    ]
    assert directory.payloads == [{}, {"known": "v1"}]


async def test_a_presence_with_another_version_drops_the_list_and_one_with_the_same_version_does_not() -> None:
    directory = Directory(card("a"))
    finder = directory.finder()
    await directory.find(finder)
    finder.receive_presence(DIRECTORY, "v1")
    finder.receive_presence("stranger@example.org", "v9")
    await directory.find(finder)
    assert len(directory.payloads) == 1
    directory.version, directory.cards = "v2", [card("b")]
    finder.receive_presence(DIRECTORY, "v2")
    assert await directory.find(finder) == [card("b")]


@pytest.mark.parametrize("return_of", ["its presence", "time", "a session"])
async def test_a_directory_that_is_offline_is_not_asked_and_its_list_is_dropped(return_of: str) -> None:
    directory = Directory(card("a"))
    finder = directory.finder()
    await directory.find(finder)
    finder.receive_presence(DIRECTORY, "v1")
    finder.receive_presence(DIRECTORY, "")
    for _ in range(2):
        with pytest.raises(PeerUnavailableError, match=f"{DIRECTORY} is offline"):
            await directory.find(finder)
    assert len(directory.payloads) == 1
    match return_of:
        case "its presence":
            finder.receive_presence(DIRECTORY, "v1")
        case "time":  # its presence may be hidden from this agent now
            directory.now += OFFLINE_S
        case _:
            finder.forget_presences()
    assert await directory.find(finder) == await directory.find(finder) == [card("a")]
    assert directory.payloads == [{}, {}]


async def test_the_list_of_a_directory_that_bounces_is_dropped() -> None:
    directory = Directory(card("a"))
    finder = directory.finder()
    await directory.find(finder)
    directory.now += STATE_INTERVAL_S
    directory.error = PeerUnavailableError(DIRECTORY, "is not available")
    with pytest.raises(PeerUnavailableError):
        await directory.find(finder)
    directory.error = None
    assert await directory.find(finder) == [card("a")]
    assert directory.payloads[-1] == {}


@pytest.mark.parametrize("is_seen", [True, False])
async def test_the_list_of_a_directory_that_does_not_answer_is_used_while_its_presence_confirms_it_or_for_a_minute(
    is_seen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory(card("a"))
    finder = directory.finder()
    await directory.find(finder)
    if is_seen:
        finder.receive_presence(DIRECTORY, "v1")
    directory.error = PeerTimeoutError(DIRECTORY, 10)
    with caplog.at_level(logging.WARNING, "spade_coreason"):
        for _ in range(2):
            directory.now += STATE_INTERVAL_S
            assert await directory.find(finder) == [card("a")]
    assert [record.message for record in caplog.records] == [
        f"the directory {DIRECTORY} did not answer in 10 s; its last list is used until it answers"
    ]
    directory.now += UNSEEN_LIST_AGE_S
    if is_seen:
        assert await directory.find(finder) == [card("a")]
    else:
        with pytest.raises(PeerTimeoutError):
            await directory.find(finder)


async def test_a_directory_that_gives_no_access_any_more_lists_nothing() -> None:
    directory = Directory(card("a"))
    finder = directory.finder()
    finder.receive_presence(DIRECTORY, "v1")
    assert await directory.find(finder) == [card("a")]
    directory.now += STATE_INTERVAL_S
    directory.error = PeerRefusedError(DIRECTORY, "refuses: later", retry_after_s=1)
    assert await directory.find(finder) == [card("a")]
    directory.now += STATE_INTERVAL_S
    directory.error = PeerRefusedError(DIRECTORY, "refuses: no access")
    with pytest.raises(PeerRefusedError):
        await directory.find(finder)


async def test_finds_of_many_turns_share_one_request_and_one_that_is_cancelled_stops_no_other() -> None:
    directory = Directory(card("a"))
    directory.release = asyncio.Event()
    finder = directory.finder()
    first, *others = [asyncio.create_task(directory.find(finder)) for _ in range(5)]
    await directory.asked.wait()  # the first one asks
    first.cancel()
    directory.release.set()
    assert await asyncio.gather(*others) == [[card("a")]] * 4
    assert len(directory.payloads) == 2


async def test_a_find_that_waits_for_another_one_ends_in_its_own_time() -> None:
    directory = Directory(card("a"))
    directory.release = asyncio.Event()
    finder = directory.finder()
    slow = asyncio.create_task(directory.find(finder))
    await directory.asked.wait()
    with pytest.raises(PeerTimeoutError, match=DIRECTORY):
        await directory.find(finder, timeout_s=0.01)
    directory.release.set()
    assert await slow == [card("a")]


async def test_a_directory_that_fails_is_an_error_only_if_no_agent_is_found(caplog: pytest.LogCaptureFixture) -> None:
    class Half(Directory):
        async def ask(self, jid: str, payload: Mapping[str, Any], timeout_s: float) -> PeerAnswer:
            self.error = PeerTimeoutError(jid, 10) if jid == OTHER else None
            return await super().ask(jid, payload, timeout_s)

    directory = Half(card("a"))
    finder = directory.finder(DIRECTORY, OTHER)
    assert await directory.find(finder) == [card("a")]
    with pytest.raises(PeerTimeoutError, match=OTHER):
        await finder.find(directory.ask, "sing", None, None, 10)
    assert "its agents are not found" in caplog.text


async def test_an_agent_is_listed_once_and_never_finds_itself() -> None:
    directory = Directory(card("a"), card("me", domain="localhost"))
    assert await directory.find(directory.finder(DIRECTORY, OTHER)) == [card("a")]


@pytest.mark.parametrize("data", [[], {}, {"version": 1}, {"version": "v"}, {"version": "v", "states": []}])
async def test_an_answer_that_is_no_list_names_the_directory(data: Any) -> None:
    directory = Directory()
    directory.data = data
    with pytest.raises(PeerFailedError, match=DIRECTORY):
        await directory.find(directory.finder())


async def test_each_directory_is_watched_from_the_first_find_on() -> None:
    directory = Directory(card("a"))
    finder, watched = directory.finder(DIRECTORY, OTHER), list[str]()
    finder.watched.subscribe(watched.append)
    assert watched == []
    await directory.find(finder)
    await directory.find(finder)
    assert watched == [DIRECTORY, OTHER]
