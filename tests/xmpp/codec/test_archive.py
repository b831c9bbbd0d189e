"""Queries to a message archive (XEP-0313), and which stanzas are its results."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree.ElementTree import fromstring, tostring

import pytest

from spade_coreason.domain.messages import InboundRequest
from spade_coreason.xmpp.codec.archive import archive_query, is_addressed_to, newest_query, read_archived, read_page
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.evidence import assigned_id
from tests.support.foreign_stanzas import AGENT, DEVICE, message

ARCHIVED_MESSAGE = f"<message xmlns='jabber:client' from='{DEVICE}' to='{AGENT}' type='chat' id='1'><body>hi</body>%s</message>"
STAMP = "<delay xmlns='urn:xmpp:delay' stamp='2026-11-20T10:00:00Z'/>"
STANZA_ID = "<stanza-id xmlns='urn:xmpp:sid:0' by='%s' id='%s'/>"


def result(archived_message: str = ARCHIVED_MESSAGE % "", *, query: str = "q", result_id: str = "7") -> str:
    forwarded = f"<forwarded xmlns='urn:xmpp:forward:0'>{STAMP}{archived_message}</forwarded>"
    return f"<result xmlns='urn:xmpp:mam:2' queryid='{query}' id='{result_id}'>{forwarded}</result>"


def test_a_query_names_where_it_begins_and_how_much_it_wants() -> None:
    query = archive_query("q", after="41", since=datetime(2026, 11, 20, 9, tzinfo=UTC), max_messages=50)
    text = tostring(query, encoding="unicode")
    assert (query.tag, query.get("queryid")) == ("{urn:xmpp:mam:2}query", "q")
    for part in ("urn:xmpp:mam:2", "2026-11-20T09:00:00Z", ">50<", ">41<"):
        assert part in text
    newest = newest_query("q")
    assert newest.find(".//{http://jabber.org/protocol/rsm}before") is not None
    assert newest.findtext(".//{http://jabber.org/protocol/rsm}max") == "1"


@pytest.mark.parametrize("sender", [None, AGENT, f"{AGENT}/agent"])
def test_a_result_of_the_own_archive_is_the_message_with_its_id_and_time(sender: str | None) -> None:
    forged = (STANZA_ID % (AGENT, "666")) + (STANZA_ID % ("room@muc.example.org", "5"))
    archived = read_archived(message(result(ARCHIVED_MESSAGE % forged), sender=sender, type=None, id=None), AGENT, "q")
    assert archived is not None
    assert archived.archive_id == assigned_id(archived.message, AGENT) == "7"
    assert assigned_id(archived.message, "room@muc.example.org") == "5"
    decoded = decode(archived.message)
    assert isinstance(decoded, InboundRequest)
    assert (decoded.payload, decoded.metadata) == ({"query": "hi"}, {"delayed_since": "2026-11-20T10:00:00Z"})
    live = decode(fromstring(ARCHIVED_MESSAGE % ""))
    assert isinstance(live, InboundRequest)
    assert (live.sender, live.stanza_id, live.content) == (decoded.sender, decoded.stanza_id, decoded.content)


@pytest.mark.parametrize(
    ("inner", "sender"),
    [
        (result(), DEVICE),
        (result(), "example.org"),
        (result(), ""),
        (result(query="another"), AGENT),
        (result(result_id=""), AGENT),
        (result(archived_message=""), AGENT),
        ("<result xmlns='urn:xmpp:mam:2' queryid='q' id='7'/>", AGENT),
        ("<body>hi</body>", AGENT),
    ],
)
def test_other_stanzas_are_no_archive_results(inner: str, sender: str) -> None:
    assert read_archived(message(inner, sender=sender), AGENT, "q") is None


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (f"from='{DEVICE}' to='{AGENT}/agent' type='chat'", True),
        (f"from='{DEVICE}'", True),
        (f"from='{DEVICE}' to='{AGENT}' type='error'", False),
        (f"from='{DEVICE}' to='{AGENT}' type='groupchat'", False),
        (f"from='{DEVICE}' to='{AGENT}' type='headline'", False),
        (f"from='{AGENT}/agent' to='{DEVICE}' type='chat'", False),
        (f"from='{DEVICE}' to='somebody@example.org' type='chat'", False),
        (f"to='{AGENT}' type='chat'", False),
    ],
)
def test_only_messages_that_others_sent_to_the_agent_count(attributes: str, expected: bool) -> None:
    assert (
        is_addressed_to(AGENT, fromstring(f"<message xmlns='jabber:client' {attributes}><body>hi</body></message>")) is expected
    )


def test_the_end_of_a_page_says_where_to_go_on() -> None:
    fin = "<iq><fin xmlns='urn:xmpp:mam:2' %s><set xmlns='http://jabber.org/protocol/rsm'><last>9</last></set></fin></iq>"
    assert read_page(fromstring(fin % "complete='true'")) == ("9", True)
    assert read_page(fromstring(fin % "")) == ("9", False)
    assert read_page(fromstring("<iq/>")) == ("", True)
