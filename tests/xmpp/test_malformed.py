"""Malformed forms of every extension that an agent reads: it stays online, logs no error and answers the next question."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from slixmpp.xmlstream.handler import Waiter
from slixmpp.xmlstream.matcher import MatcherId

from tests.support.hosting import Echo, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

# What a message may carry: an element, its namespace, its attributes, and what stands in it.
IN_MESSAGES = [
    ("active", "http://jabber.org/protocol/chatstates", [], ""),
    ("request", "urn:xmpp:receipts", [], ""),
    ("received", "urn:xmpp:receipts", ["id"], ""),
    ("markable", "urn:xmpp:chat-markers:0", [], ""),
    ("displayed", "urn:xmpp:chat-markers:0", ["id"], ""),
    ("replace", "urn:xmpp:message-correct:0", ["id"], ""),
    ("retract", "urn:xmpp:message-retract:1", ["id"], ""),
    ("retract", "urn:xmpp:message-retract:0", ["id"], ""),
    ("apply-to", "urn:xmpp:fasten:0", ["id"], "<retract xmlns='urn:xmpp:message-retract:0'/>"),
    ("reactions", "urn:xmpp:reactions:0", ["id"], "<reaction>👍</reaction>"),
    ("reply", "urn:xmpp:reply:0", ["id", "to"], ""),
    ("fallback", "urn:xmpp:fallback:0", ["for"], "<body start='-1' end='x'/>"),
    ("origin-id", "urn:xmpp:sid:0", ["id"], ""),
    ("stanza-id", "urn:xmpp:sid:0", ["id", "by"], ""),
    ("delay", "urn:xmpp:delay", ["stamp", "from"], ""),
    ("no-store", "urn:xmpp:hints", [], ""),
    ("json", "urn:xmpp:json:0", [], '{"type": "ai.coreason.stream.chunk", "data": {}}'),
    ("answer", "urn:spade-coreason:answer:0", [], ""),
    ("x", "jabber:x:data", ["type"], "<title>spade:x:metadata</title><field><value/><value/></field>"),
    ("x", "jabber:x:oob", [], "<url>http://[::1</url><url/><desc/>"),
    ("x", "jabber:x:conference", ["jid", "password", "thread"], ""),
    ("x", "http://jabber.org/protocol/muc#user", [], "<invite/><status code='x'/><item/><decline/><password/>"),
    ("file-sharing", "urn:xmpp:sfs:0", [], "<sources/><file xmlns='urn:xmpp:file:metadata:0'><size>-1e9</size></file>"),
    ("sources", "urn:xmpp:sfs:0", ["id"], "<url-data xmlns='http://jabber.org/protocol/url-data' target='http://[::1'/>"),
    ("reference", "urn:xmpp:reference:0", ["type", "uri"], "<media-sharing xmlns='urn:xmpp:sims:1'><sources/></media-sharing>"),
    ("event", "http://jabber.org/protocol/pubsub#event", [], "<items node=''><item/><retract/></items>"),
    ("result", "urn:xmpp:mam:2", ["id", "queryid"], "<forwarded xmlns='urn:xmpp:forward:0'><message/></forwarded>"),
    ("received", "urn:xmpp:carbons:2", [], "<forwarded xmlns='urn:xmpp:forward:0'><message/></forwarded>"),
    ("sent", "urn:xmpp:carbons:2", [], "<forwarded xmlns='urn:xmpp:forward:0'/>"),
    ("response", "urn:xmpp:tmp:quick-response", ["value", "label"], ""),
    ("encrypted", "eu.siacs.conversations.axolotl", [], "<header sid='x'/><payload>!</payload>"),
    ("thread", "jabber:client", ["parent"], ""),
    ("subject", "jabber:client", [], ""),
    ("error", "jabber:client", ["type", "code"], "<item-not-found xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/>"),
]

IN_PRESENCES = [
    "<show>no such state</show>",
    "<show/>",
    "<show>away</show><show>xa</show>",
    "<status/><status>two</status>",
    "<priority/>",
    "<priority>high</priority>",
    "<priority>99999999999999999999</priority>",
    "<c xmlns='http://jabber.org/protocol/caps'/>",
    "<c xmlns='http://jabber.org/protocol/caps' hash='none' node='' ver='{huge}'/>",
    "<x xmlns='vcard-temp:x:update'/>",
    "<x xmlns='vcard-temp:x:update'><photo>no hash</photo><photo/></x>",
    "<x xmlns='http://jabber.org/protocol/muc'/>",
    "<x xmlns='http://jabber.org/protocol/muc#user'/>",
    "<x xmlns='http://jabber.org/protocol/muc#user'><item role='x' jid='@/' nick=''/><status code='no'/><destroy/></x>",
    "<occupant-id xmlns='urn:xmpp:occupant-id:0'/>",
    "<nick xmlns='http://jabber.org/protocol/nick'>{huge}</nick>",
    "<delay xmlns='urn:xmpp:delay' stamp='yesterday'/>",
    "<idle xmlns='urn:xmpp:idle:1' since='never'/>",
    "<error type='no'/>",
]

IN_IQS = [
    "",
    "<query/>",
    "<query xmlns='http://jabber.org/protocol/disco#info' node='{huge}'/>",
    "<query xmlns='http://jabber.org/protocol/disco#info'><identity/><feature/><x xmlns='jabber:x:data'/></query>",
    "<query xmlns='http://jabber.org/protocol/disco#items' node='no such node'><item/></query>",
    "<query xmlns='jabber:iq:version'><version>{huge}</version></query>",
    "<query xmlns='jabber:iq:roster'><item jid='@' subscription='both'/><item/></query>",
    "<query xmlns='jabber:iq:register'/>",
    "<vCard xmlns='vcard-temp'><PHOTO><BINVAL>!</BINVAL></PHOTO></vCard>",
    "<ping xmlns='urn:xmpp:ping'><ping xmlns='urn:xmpp:ping'/></ping>",
    "<time xmlns='urn:xmpp:time'><utc>never</utc></time>",
    "<command xmlns='http://jabber.org/protocol/commands'/>",
    "<command xmlns='http://jabber.org/protocol/commands' node='status' action='fly' sessionid='{huge}'/>",
    "<pubsub xmlns='http://jabber.org/protocol/pubsub'><items/><publish/></pubsub>",
    "<open xmlns='http://jabber.org/protocol/ibb' block-size='-1' sid='s'/>",
    "<query xmlns='http://jabber.org/protocol/bytestreams'><streamhost port='x'/></query>",
    "<request xmlns='urn:xmpp:http:upload:0' filename='' size='x'/>",
    "<query xmlns='urn:xmpp:mam:2'><x xmlns='jabber:x:data'><field/></x></query>",
    "<fin xmlns='urn:xmpp:mam:2' complete='maybe'/>",
    "<jingle xmlns='urn:xmpp:jingle:1'><content/></jingle>",
]

HUGE = "h" * 60_000
DEEP = 400


def _malformed_variants(name: str, namespace: str, attributes: list[str], inner: str) -> Iterator[str]:
    def build(attributes_text: str, inside: str) -> str:
        return f"<{name} xmlns='{namespace}'{attributes_text}>{inside}</{name}>"

    def attributes_with(value: str) -> str:
        return "".join(f" {attribute}={quoteattr(value)}" for attribute in attributes)

    yield build("", "")
    yield build("", inner)
    yield build(attributes_with(""), inner)
    yield build(attributes_with(" \t/@'\"<&"), inner)
    yield build(attributes_with("x"), inner) + build(attributes_with("y"), "") + build("", inner)
    yield build(attributes_with("x"), inner * 300)
    yield build(attributes_with("x"), "text<unknown xmlns='urn:unknown'/>text")
    if attributes:
        yield build(attributes_with(HUGE[: len(HUGE) // len(attributes)]), "")
    yield build(attributes_with("x"), HUGE)
    yield f"<{name} xmlns='{namespace}'{attributes_with('x')}>" * DEEP + f"</{name}>" * DEEP


@pytest.fixture
def no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """The records that any logger logged as errors; the list has to stay empty."""
    silenced = logging.getLogger("slixmpp")
    before, level = silenced.level, logging.ERROR
    silenced.setLevel(level)
    found: list[logging.LogRecord] = []
    yield found
    silenced.setLevel(before)
    found += [record for record in caplog.get_records("call") if record.levelno >= level]
    assert [record.getMessage() for record in found] == []


async def _assert_answered(client: StockClient, agent: OnlineAgent, question: str) -> None:
    """Ask a question and skip all messages until its answer."""
    client.send(question, agent.jid)
    async with asyncio.timeout(TIMEOUT_S):
        while (await client.answer())["body"] != question:
            pass
    assert agent.host.is_alive()
    assert (agent.host.connection.session_count, agent.host.connection.resumption_count) == (1, 0)


@pytest.mark.parametrize("is_sent_in_all_types", [False, pytest.param(True, marks=pytest.mark.release)])
async def test_malformed_extensions_of_messages_do_no_harm(
    real_server: XmppServer, tmp_path: Path, no_logged_errors: list[logging.LogRecord], is_sent_in_all_types: bool
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        for number, element in enumerate(IN_MESSAGES):
            for count, extra in enumerate(_malformed_variants(*element)):
                alice.send(f"{number}-{count}", echo.jid, extra_xml=extra)
                if is_sent_in_all_types and len(extra) < len(HUGE):  # a server takes its time for those
                    alice.send(None, echo.jid, extra_xml=extra)
                    alice.send(f"{number}-{count} normal", echo.jid, type="normal", extra_xml=extra)
            await _assert_answered(alice, echo, f"the last with {element[0]} of {element[1]}, {number}")


async def test_malformed_presences_do_no_harm(
    real_server: XmppServer, tmp_path: Path, no_logged_errors: list[logging.LogRecord]
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        for number, inner in enumerate(IN_PRESENCES):
            for kind in ("", " type='unavailable'", " type='subscribe'", " type='error'"):
                inside = inner.replace("{huge}", HUGE)
                alice.send_xml(f"<presence xmlns='jabber:client' to='{echo.jid}'{kind}>{inside}</presence>")
            await _assert_answered(alice, echo, f"after {number}")


async def test_malformed_iqs_are_answered(
    real_server: XmppServer, tmp_path: Path, no_logged_errors: list[logging.LogRecord]
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        for number, inner in enumerate(IN_IQS):
            for kind in ("get", "set"):
                answer = Waiter(ident := f"{kind}-{number}", MatcherId(ident))
                alice.xmpp.register_handler(answer)
                inside = inner.replace("{huge}", HUGE)
                alice.send_xml(f"<iq xmlns='jabber:client' id='{ident}' type='{kind}' to='{echo.jid}/agent'>{inside}</iq>")
                assert await answer.wait(TIMEOUT_S) is not None, inner
            await _assert_answered(alice, echo, f"after {number}")
