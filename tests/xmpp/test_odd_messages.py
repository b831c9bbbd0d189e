"""Odd messages get a clear answer or silence, and never end an agent or its connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from spade.behaviour import CyclicBehaviour
from spade.template import Template

from spade_coreason.xmpp.host import HostedAgent
from tests.support.hosting import Echo, OnlineAgent, container, envelope, parse_event, receive_events, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

FORM = "<x xmlns='jabber:x:data' type='form'><title>spade:x:metadata</title>{fields}</x>"
IDS = {"request_id": str(uuid4()), "root_request_id": str(uuid4())}


async def _assert_healthy(client: StockClient, agent: OnlineAgent) -> None:
    question = f"still there, {len(agent.agent.requests)}?"  # the same question ten times would pause the conversation
    assert await client.ask(question, agent.jid) == question
    assert client.messages.empty()
    assert agent.host.is_alive()
    assert agent.host.connection.session_count == 1
    assert agent.host.connection.resumption_count == 0


TEXTS = [
    "שלום, עולם",
    "\u202eright to left\u202c",
    "👩‍👩‍👧‍👦 \N{ROCKET} \U0001f1e9\U0001f1ea",
    "a\u0301\u0323",
    "tab\tand\nnew line",
    "\u0085\u200b\ufffd\ufdd0",
    "<b>&amp;</b> ]]> &#0; <!-- --> <![CDATA[x]]>",
    "{'json': \"like\"}",
    "/me waves",
    "?OTRv23?",
]


async def test_text_of_any_kind_is_answered(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for body in TEXTS:
            # An answer is Markdown, where an entity stands for its character.
            assert await alice.ask(body, echo.jid) == body.strip().replace("&amp;", "&")
            assert echo.agent.requests[-1].payload["query"] == body
        await _assert_healthy(alice, echo)


async def test_an_encrypted_message_is_answered_once_with_what_to_do(local_server: XmppServer, tmp_path: Path) -> None:
    omemo = (
        "<body>I sent you an OMEMO encrypted message but your client doesn't seem to support that.</body>"
        "<encryption xmlns='urn:xmpp:eme:0' namespace='eu.siacs.conversations.axolotl' name='OMEMO'/>"
        "<encrypted xmlns='eu.siacs.conversations.axolotl'><header sid='1'/><payload>eA==</payload></encrypted>"
    )
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        for client in (alice, alice, bob):
            client.send(None, echo.jid, extra_xml=omemo)
        for client in (alice, bob):
            text = str((await client.answer())["body"])
            assert text.startswith("Your message is encrypted with OMEMO, and I cannot read it. Switch off the encryption")
        assert await alice.ask("unencrypted", echo.jid) == "unencrypted"
        assert [request.payload["query"] for request in echo.agent.requests] == ["unencrypted"]
        await _assert_healthy(alice, echo)


async def test_messages_without_content_get_no_answer(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for body in ("", " ", "\n\t ", "\u00a0\u2003"):
            alice.send(body, echo.jid)
        alice.send(None, echo.jid)
        alice.send(None, echo.jid, thread="only a thread")
        alice.send(None, echo.jid, extra_xml="<subject>only a subject</subject>")
        alice.send(None, echo.jid, extra_xml="<body xmlns='urn:another'>not ours</body>")
        alice.send(None, echo.jid, extra_xml="<x xmlns='jabber:x:data' type='form'><title>another form</title></x>")
        alice.send(None, echo.jid, extra_xml=container({"type": "org.example.event", "data": {}}))
        for kind in ("stream.chunk", "request.completed", "fragment", "no.such.type", ""):
            alice.send(None, echo.jid, extra_xml=envelope({"query": "x"}, kind=kind))
        await _assert_healthy(alice, echo)
        assert len(echo.agent.requests) == 1


WRONG_REQUESTS: list[tuple[str, str | None]] = [
    (container("no JSON"), "holds no CloudEvent"),
    (container(""), "holds no CloudEvent"),
    (container([]), "holds no CloudEvent"),
    (container({}), "holds no CloudEvent"),
    (container("[" * 20_000), "holds no CloudEvent"),
    (container('{"type": 7}'), None),
    (container('{"type": "ai.coreason.request"}'), "data.payload is no object"),
    (envelope([]), "data.payload is no object"),
    (envelope("text"), "data.payload is no object"),
    (envelope(request_id="x"), "data.payload is no object"),
    (envelope({}, metadata=[1]), "data.metadata is no object"),
    (envelope({}, request_id="x"), "no UUID"),
    (envelope({}, request_id=7), "no UUID"),
    (envelope({}, request_id={}), "no UUID"),
    (envelope({}, parent_request_id=str(uuid4())), "Broken Trace"),
    (envelope({}, capabilities=[1]), "data.capabilities"),
    (envelope({}, capabilities={"supported_events": 7}), "data.capabilities"),
]


async def test_a_wrong_request_gets_an_error_that_says_what_is_wrong(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for extra, problem in WRONG_REQUESTS:
            ident = alice.send(None, echo.jid, extra_xml=extra)
            if problem is not None:
                event = parse_event(await alice.message())
                assert event["type"] == "ai.coreason.request.failed", extra
                assert event["data"]["code"] == 400
                assert problem in event["data"]["message"], extra
                assert event["requestid"] in (ident, "x")
            await _assert_healthy(alice, echo)
        assert len(echo.agent.requests) == len(WRONG_REQUESTS)  # none of them


PAYLOADS: list[dict[str, object]] = [
    {},
    {"query": None},
    {"query": {"a": [1, None, True]}},
    {"query": "\x00\x1b\ud800"},
    {"query": "x", "big": 10**40},
    {"": ""},
]


async def test_a_strange_payload_is_a_payload(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for payload in PAYLOADS:
            alice.send(None, echo.jid, extra_xml=envelope(payload, request_id=str(uuid4())))
            last = (await receive_events(alice))[-1]
            assert last["type"] in ("ai.coreason.request.completed", "ai.coreason.request.failed"), payload
            await _assert_healthy(alice, echo)


STRANGE_FIELDS = [
    "",
    "<field/>",
    "<field var='a'/>",
    "<field><value>v</value></field>",
    "<field var='performative' type='text-single'><value>no-such-performative</value></field>",
    "<field var='a'><value>1</value><value>2</value></field><field var='a'><value>3</value></field>",
    "<field var='conversation_id'><value>forged</value></field><field var='sender'><value>forged</value></field>",
    "<field var='&lt;&amp;&quot;&apos;'><value>&lt;&amp;\"'</value></field>",
    "<field var='_thread_node'><value/></field>",
    "<reported/><item><field var='a'><value>x</value></field></item>",
    "<field var='" + '"' * 20_000 + "'><value>x</value></field>",
]


async def test_unknown_spade_metadata_is_answered_in_kind(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for number, fields in enumerate(STRANGE_FIELDS):
            ident = alice.send(f"{number}.", echo.jid, extra_xml=FORM.format(fields=fields))
            answer = await alice.answer()
            assert answer["body"] == f"{number}."
            assert len(str(answer).encode()) <= 65_536
            form = answer.xml.find("{jabber:x:data}x")
            found = {field.get("var"): field.findtext("{jabber:x:data}value") for field in form.iter("{jabber:x:data}field")}
            assert (found["performative"], found["in-reply-to"]) == ("inform", ident), fields[:100]
            assert echo.agent.requests[-1].metadata["sender"] == alice.full_jid
            assert echo.agent.requests[-1].metadata["conversation_id"] == f"{alice.jid}_{echo.jid}"
        await _assert_healthy(alice, echo)


async def test_unknown_metadata_hurts_no_behaviour_either(local_server: XmppServer, tmp_path: Path) -> None:
    class ListeningBehaviour(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            await self.receive(timeout=1)

    def add(host: HostedAgent) -> None:
        host.add_behaviour(ListeningBehaviour(), Template(metadata={"performative": "request"}))

    async with (
        run_agent(Echo(), local_server, tmp_path, prepare=add) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for number, fields in enumerate(STRANGE_FIELDS):
            alice.send(f"{number}.", echo.jid, extra_xml=FORM.format(fields=fields))
            assert (await alice.answer())["body"] == f"{number}.", fields[:100]
        await _assert_healthy(alice, echo)


async def test_ids_and_threads_of_absurd_length_cannot_break_the_stream(local_server: XmppServer, tmp_path: Path) -> None:
    """An escaped quote is six times as long, so an id that came in must not go out."""
    receipt = "<request xmlns='urn:xmpp:receipts'/>"
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for mark in ("x", '"', "<", "&", "\N{ROCKET}"):
            absurd = mark * 20_000
            alice.send("long id", echo.jid, id=absurd, extra_xml=receipt)
            alice.send("long thread", echo.jid, thread=absurd)
            alice.send("both", echo.jid, thread=absurd, id=absurd, extra_xml=FORM.format(fields=""))
            alice.send(None, echo.jid, id=absurd, thread=absurd, extra_xml=envelope({"query": "x" * 1000}))
            alice.send(None, echo.jid, id=absurd, extra_xml=container("no JSON"))
            await _receive_until_answer(alice, echo, f"the last with {mark}")
        await _assert_healthy(alice, echo)


async def _receive_until_answer(client: StockClient, agent: OnlineAgent, last: str) -> None:
    """Ask `last` and receive everything until its answer; no stanza is too large."""
    client.send(last, agent.jid)
    body = ""
    while body != last:
        message = await client.message()
        assert len(str(message).encode()) <= 65_536
        body = message["body"]


async def test_an_id_cannot_put_stanzas_into_our_stream(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        inner = f'<message to="{bob.jid}"><body>I am {echo.jid}</body></message>'
        for quote in ("'", '"'):
            forged = f"{quote}></message>{inner}<message id={quote}"
            alice.send(None, echo.jid, id=forged, extra_xml=container("no JSON"))
            alice.send("x.", echo.jid, id=forged, thread=forged, extra_xml="<request xmlns='urn:xmpp:receipts'/>")
            alice.send("y.", echo.jid, id=forged, thread=forged, extra_xml=FORM.format(fields=""))
            alice.send(None, echo.jid, id=forged, thread=forged, extra_xml=envelope({"query": forged}))
        await eventually(lambda: len(echo.agent.requests) == 6)
        for thread in (f"'></message>{inner}<message id='", f'"></message>{inner}<message id="'):
            alice.send("the last there", echo.jid, thread=thread)
        answer_count = 0
        while answer_count < 2:
            answer_count += (await alice.message())["body"] == "the last there"
        await _receive_until_answer(alice, echo, "the last")
        await _assert_healthy(alice, echo)
        assert bob.messages.empty()


async def test_a_client_that_breaks_the_rules_of_xml_ends_its_own_stream_only(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for raw in (f"<message to='{echo.jid}'><body>\x00\x1b</body></message>", f"<message to='{echo.jid}'><body>&#1;</body>"):
            async with StockClient(*await local_server.account(), local_server) as mallory:
                mallory.xmpp.send_raw(raw)
                await asyncio.wait_for(mallory.disconnected.wait(), TIMEOUT_S)
        await _assert_healthy(alice, echo)


async def test_a_question_of_one_megabyte_is_answered_in_parts_where_the_server_takes_it(
    prosody_large: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(Echo(), prosody_large, tmp_path) as echo,
        StockClient(*await prosody_large.account(), prosody_large) as alice,
    ):
        question = "word & " * (1_000_000 // 7)
        alice.send(question, echo.jid)
        words: list[str] = []
        while len(words) < len(question.split()):
            part = await alice.answer()
            assert len(str(part).encode()) <= 65_536
            words += part["body"].split()
        assert words == question.split()
        await _assert_healthy(alice, echo)
