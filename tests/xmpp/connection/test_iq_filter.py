"""Requests that slixmpp would leave without an answer are refused."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.xmpp.connection.iq_filter import refusal, repair_iq
from tests.support.foreign_stanzas import AGENT, ALICE

ROSTER = "<query xmlns='jabber:iq:roster'><item jid='a@b' subscription='both'/></query>"
PING = "<ping xmlns='urn:xmpp:ping'/>"


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


@pytest.mark.parametrize("jid", ["@", "a@", "[::1", "xn--@xn--", "", None])
def test_a_contact_without_a_valid_jid_is_left_out_of_the_roster(jid: str | None) -> None:
    invalid = "<item subscription='both'/>" if jid is None else f"<item jid='{jid}' subscription='both'/>"
    roster = f"<query xmlns='jabber:iq:roster'><item jid='a@b'/>{invalid}<item jid='é@ü.example/x'/></query>"
    iq = fromstring(f"<iq xmlns='jabber:client' type='result'>{roster}</iq>")
    repair_iq(iq)
    assert [item.get("jid") for item in iq[0]] == ["a@b", "é@ü.example/x"]


@pytest.mark.parametrize("kind", ["get", "set"])
@pytest.mark.parametrize("payload", ["", PING * 2, f"<a xmlns='urn:a'/>{PING}"])
def test_a_request_without_exactly_one_payload_is_a_bad_one(kind: str, payload: str) -> None:
    refused = _refuse(ALICE, kind, payload)
    assert refused is not None
    assert "<error type='modify'><bad-request " in refused
    assert _refuse(ALICE, "result", payload) is None
    assert _refuse(ALICE, kind, PING) is None


@pytest.mark.parametrize("kind", ["get", "set"])
def test_a_command_without_a_sender_is_refused_to_the_own_server(kind: str) -> None:
    refused = _refuse(None, kind, "<command xmlns='http://jabber.org/protocol/commands' node='status'/>")
    assert refused is not None
    assert fromstring(refused).attrib == {"type": "error", "id": "7"}
    assert _refuse(ALICE, kind, "<command xmlns='http://jabber.org/protocol/commands' node='status'/>") is None


@pytest.mark.parametrize(("kind", "left"), [("get", 1), ("set", 1), ("error", 2)])
def test_a_request_has_no_error(kind: str, left: int) -> None:
    iq = fromstring(f"<iq xmlns='jabber:client' type='{kind}'>{PING}<error type='cancel'/></iq>")
    repair_iq(iq)
    assert len(iq) == left
