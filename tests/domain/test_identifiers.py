"""The ids of conversations, sessions, stanzas and threads."""

from __future__ import annotations

import pickle
from uuid import RFC_4122, UUID, SafeUUID, uuid5

import pytest

from spade_coreason.domain.identifiers import (
    INBOX_NAMESPACE,
    candidate_conversation_ids,
    choose_conversation_id,
    derive_inbox_key,
    derive_session_id,
    derive_thread,
    is_reserved_thread,
    recover_thread,
)

AGENT = "notes@example.org"
ALICE = "alice@example.org"
BOB = "bob@example.org"


def conversation_id(thread: str | None, sender: str, owners: dict[str, str]) -> str | None:
    return choose_conversation_id(candidate_conversation_ids(thread, sender, AGENT), sender, owners)


def test_a_thread_is_the_conversation_of_its_first_sender() -> None:
    assert conversation_id("user1_session", ALICE, {}) == "user1_session"
    assert conversation_id("user1_session", BOB, {"user1_session": ALICE}) == f"user1_session_{BOB}"


def test_without_a_thread_the_two_bare_jids_are_the_conversation_id() -> None:
    assert conversation_id(None, ALICE, {}) == f"{ALICE}_{AGENT}"


def test_a_person_with_an_alternative_id_keeps_it_when_the_first_is_free_again() -> None:
    assert conversation_id("t", BOB, {f"t_{BOB}": BOB}) == f"t_{BOB}"


@pytest.mark.parametrize("thread", [f"{ALICE}_{AGENT}", f"t_{ALICE}", f"x_{AGENT}", "a_b@c"])
def test_a_thread_that_reads_as_an_id_of_ours_is_never_taken_as_it_is(thread: str) -> None:
    assert is_reserved_thread(thread, AGENT)
    assert conversation_id(thread, BOB, {}) == f"{thread}_{BOB}"


@pytest.mark.parametrize("thread", ["t", "user1_session", "a@b", "550e8400-e29b-41d4-a716-446655440000"])
def test_other_threads_are_taken_as_they_are(thread: str) -> None:
    assert conversation_id(thread, BOB, {}) == thread


def test_an_alternative_id_that_another_owns_gets_a_hash_of_the_owner() -> None:
    owners = {"t": ALICE, f"t_{BOB}": ALICE}
    name = conversation_id("t", BOB, owners)
    assert name is not None
    assert name.startswith(f"t_{BOB}_")
    assert conversation_id("t", BOB, {**owners, name: BOB}) == name
    assert conversation_id("t", BOB, {**owners, name: ALICE}) is None


def test_sessions_are_the_same_after_a_restart_and_differ_by_each_part() -> None:
    session_ids = {derive_session_id(agent, owner, name) for agent in "ab" for owner in "cd" for name in "ef"}
    assert len(session_ids) == 8
    assert derive_session_id("a", "c", "e") in session_ids
    assert derive_session_id("a", "c", "e").version == 5
    assert derive_session_id("a", "b_c", "d") != derive_session_id("a", "b", "c_d")


def test_a_stanza_is_the_same_only_with_the_same_sender_id_and_content() -> None:
    key = derive_inbox_key(AGENT, ALICE, "1", "hi")
    assert key == derive_inbox_key(AGENT, ALICE, "1", "hi")
    assert len({key, derive_inbox_key(AGENT, BOB, "1", "hi"), derive_inbox_key(AGENT, ALICE, "1", "ho")}) == 3
    assert derive_inbox_key(AGENT, ALICE, "", "hi") != derive_inbox_key(AGENT, ALICE, "", "hi")


def test_the_key_of_a_stanza_is_a_uuid_of_version_5() -> None:
    for number in range(100):
        key = derive_inbox_key(AGENT, ALICE, str(number), "hi")
        assert key == uuid5(INBOX_NAMESPACE, f"{AGENT}\0{ALICE}\0{number}\0hi")
    assert (key.version, key.variant, key.is_safe) == (5, RFC_4122, SafeUUID.unknown)
    assert UUID(str(key)) == key == pickle.loads(pickle.dumps(key))


def test_two_people_behind_one_agent_have_two_threads_at_the_next_agent() -> None:
    alice, bob = (derive_session_id("relay@example.org", who, f"{who}_relay@example.org") for who in (ALICE, BOB))
    assert derive_thread(alice, AGENT) != derive_thread(bob, AGENT)
    assert derive_thread(alice, AGENT) == derive_thread(alice, AGENT)


@pytest.mark.parametrize("sender", [ALICE, "tea@muc.example.org", "tea@muc.example.org/visit-0"])
@pytest.mark.parametrize(
    "thread",
    [None, "t", "a@b", "a_b", "a_b@c", f"t_{ALICE}", f"t_{BOB}", f"{ALICE}_{AGENT}", f"_{ALICE}", f"t_{ALICE}_{ALICE}"],
)
def test_the_thread_of_a_conversation_is_recovered_from_its_id(sender: str, thread: str | None) -> None:
    for conversation_name in candidate_conversation_ids(thread, sender, AGENT):
        found = recover_thread(conversation_name, sender, AGENT)
        assert found == thread
