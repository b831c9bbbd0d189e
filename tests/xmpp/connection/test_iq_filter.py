"""Requests that slixmpp would leave without an answer are refused."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.xmpp.connection.iq_filter import refusal
from tests.support.foreign_stanzas import AGENT, ALICE

ROSTER = "<query xmlns='jabber:iq:roster'><item jid='a@b' subscription='both'/></query>"


def _refuse(sender: str | None, kind: str = "set", payload: str = ROSTER) -> str | None:
    origin = "" if sender is None else f" from='{sender}'"
    return refusal(
        fromstring(f"<iq xmlns='jabber:client' type='{kind}' id='7'{origin}>{payload}</iq>"), AGENT, lambda jid: True
    )


@pytest.mark.parametrize("sender", [None, "", AGENT])
def test_the_own_account_may_push_its_roster(sender: str | None) -> None:
    assert _refuse(sender) is None


@pytest.mark.parametrize("sender", [ALICE, f"{ALICE}/phone", "example.org", f"{AGENT}/agent", f"{AGENT}/other", f"{AGENT}/"])
def test_nobody_else_may_push_it_and_a_device_of_the_account_neither(sender: str) -> None:
    refused = _refuse(sender)
    assert refused is not None
    error = fromstring(refused)
    assert (error.get("type"), error.get("to"), error.get("id")) == ("error", sender, "7")
    assert _refuse(sender, "get") is None
