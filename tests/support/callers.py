"""Callers of doors, whom an agent admits as it admits those with a live key."""

from __future__ import annotations

from collections.abc import Iterable

from spade_coreason import AgentTester
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.callers import caller_address, key_of, person_below

WEBSITE, SHOP = caller_address("website"), caller_address("shop")
USER = person_below("website", "ann@example.org")
CALLERS = (WEBSITE, SHOP, USER)


def admit_callers(access: AccessPolicy, callers: Iterable[str] = CALLERS) -> None:
    """Let callers talk to an agent."""
    access.callers = {key_of(caller): "" for caller in callers}


def admit_everywhere(tester: AgentTester) -> None:
    """Let callers talk to all agents of a tester."""
    for gateway in tester.gateways.values():
        admit_callers(gateway.access)
