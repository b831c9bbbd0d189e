"""The access of callers: a live key, and nothing else, lets them in."""

from __future__ import annotations

import pytest

from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.callers import caller_address, person_below

AGENT, ALICE, BOB = "notes@example.org", "alice@example.org", "bob@elsewhere.example"
WEBSITE, EDITOR, BOBS = (caller_address(name) for name in ("website", "editor", "bobs"))


def make_policy() -> AccessPolicy:
    policy = AccessPolicy(AGENT)
    policy.callers = {WEBSITE: "", EDITOR: ALICE, BOBS: BOB}
    return policy


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        (WEBSITE, True),
        (f"{WEBSITE}/resource", True),
        (person_below("website", "user"), True),
        (EDITOR, True),
        (BOBS, False),  # the key is live, and its account has no access
        (person_below("bobs", "user"), False),
        (caller_address("other"), False),
        (person_below("other", "website"), False),
        ("website.other@callers.invalid", False),
        ("callers.invalid", False),
        ("@callers.invalid", False),
        ("website@callers.invalid.", False),  # other spellings are in the domain, and no key has them
        ("website@CALLERS.invalid", False),
        ("website@sub.callers.invalid", False),
        ("website@callers\u3002invalid", False),
        ("website@example.org", True),  # a person of the domain of the agent
    ],
)
def test_a_caller_needs_a_live_key_whose_account_has_access(address: str, is_allowed: bool) -> None:
    assert make_policy().is_allowed(address) is is_allowed


def test_no_rule_for_people_lets_a_caller_in() -> None:
    names = ("*", "callers.invalid", "CALLERS.INVALID", WEBSITE, BOBS)
    policy = AccessPolicy("agent@callers.invalid", names, operators=names, roster=True)
    policy.approved |= set(names)
    policy.contacts |= set(names)
    for address in (WEBSITE, BOBS, person_below("website", "user")):
        assert not policy.is_allowed(address)
    policy.callers = {WEBSITE: ""}
    assert policy.is_allowed(WEBSITE)
    assert not policy.is_allowed(BOBS)


def test_a_key_ends_with_the_access_of_its_account() -> None:
    policy = make_policy()
    policy.approved.add(BOB)
    assert policy.is_allowed(BOBS)
    policy.approved.remove(BOB)
    assert not policy.is_allowed(BOBS)


def test_a_key_cannot_stand_for_a_caller() -> None:
    policy = AccessPolicy(AGENT, ["*"])
    policy.callers = {WEBSITE: EDITOR, EDITOR: WEBSITE}
    assert not policy.is_allowed(WEBSITE)
