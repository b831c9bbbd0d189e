"""Delivery receipts (XEP-0184): for which messages they are sent, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.runtime import AgentParts, AgentRules, Files, InboundGateway, PeerOptions, Runner
from spade_coreason.storage import AgentRepository, Commit
from spade_coreason.storage.backends.statements import RECEIVE
from spade_coreason.testing import PlatformLimits, Policy
from spade_coreason.xmpp.codec.evidence import Receiver
from spade_coreason.xmpp.transport import receive_archived_stanza, receive_stanza
from tests.support.databases import WriterGate, expect_failing_database, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.no_uploads import refuse_upload
from tests.support.transports import make_transport

AGENT = "echo@localhost"
ME = Receiver(AGENT)


class Echo:
    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])


class GatewayHarness:
    """A gateway with an agent behind it, and its output: receipts as their message id, replies as their text."""

    def __init__(self, gateway: InboundGateway, runner: Runner, writes: WriterGate, said: list[str]) -> None:
        self.gateway, self.runner, self.writes, self.said = gateway, runner, writes, said

    async def output_until_idle(self, stored: Commit[bool] | None) -> list[str]:
        """Return everything that is sent until the runner is idle."""
        if stored is not None:
            await stored.wait()
        await self.runner.mailboxes.wait_until_idle()
        said, self.said[:] = self.said[:], []
        return said


@asynccontextmanager
async def run_gateway(url: str, **policy: Any) -> AsyncIterator[GatewayHarness]:
    writes = WriterGate()
    database = await open_without_sync(url, writes)
    said: list[str] = []

    def send(stanzas: list[str]) -> None:
        for stanza in map(fromstring, stanzas):
            receipt = stanza.find("{urn:xmpp:receipts}received")
            said.append(f"receipt {receipt.get('id')}" if receipt is not None else stanza.findtext("body") or "")

    transport = make_transport(AGENT, send)
    repository, access = AgentRepository(database, AGENT), AccessPolicy(AGENT)
    parts = AgentParts(repository, transport.network, Files(refuse_upload), PeerOptions(), AgentRules(access, Policy(**policy)))
    runtime = parts.build_runtime(Echo())
    runner = runtime.runner
    await runner.open()
    try:
        yield GatewayHarness(runtime.gateway, runner, writes, said)
    finally:
        await runner.drain(1)
        await runner.close()
        await database.close()


def message(stanza_id: str, text: str = "hi") -> Element:
    named = f"id='{stanza_id}'" if stanza_id else ""
    origin_id = f"<origin-id xmlns='urn:xmpp:sid:0' id='of-a-person-{stanza_id}-fb0c9d47'/>" if stanza_id else ""
    return fromstring(
        f"<message xmlns='jabber:client' type='chat' from='alice@localhost/x' to='{AGENT}' {named}>"
        f"<body>{text}</body><request xmlns='urn:xmpp:receipts'/>{origin_id}</message>"
    )


async def test_a_receipt_comes_before_the_answer(database_url: str) -> None:
    async with run_gateway(database_url) as harness:
        assert await harness.output_until_idle(receive_stanza(harness.gateway, ME, message("1"))) == [
            "receipt 1",
            "hi",
        ]


async def test_a_message_delivered_twice_gets_two_receipts_and_one_reply(database_url: str) -> None:
    async with run_gateway(database_url) as harness:
        assert await harness.output_until_idle(receive_stanza(harness.gateway, ME, message("1"))) == [
            "receipt 1",
            "hi",
        ]
        assert await harness.output_until_idle(receive_stanza(harness.gateway, ME, message("1"))) == ["receipt 1"]


async def test_from_the_archive_only_new_messages_get_a_receipt(database_url: str) -> None:
    async with run_gateway(database_url) as harness:
        assert await harness.output_until_idle(receive_stanza(harness.gateway, ME, message("1"))) == [
            "receipt 1",
            "hi",
        ]
        assert await harness.output_until_idle(await receive_archived_stanza(harness.gateway, ME, message("1"))) == []
        stored = await receive_archived_stanza(harness.gateway, ME, message("2"))
        assert await harness.output_until_idle(stored) == ["receipt 2", "hi"]


async def test_a_message_without_an_id_gets_no_receipt(database_url: str) -> None:
    async with run_gateway(database_url) as harness:
        assert await harness.output_until_idle(receive_stanza(harness.gateway, ME, message(""))) == ["hi"]


async def test_a_refused_message_gets_no_receipt(database_url: str) -> None:
    async with run_gateway(database_url, limits=PlatformLimits(queue=1)) as harness:
        stored = [receive_stanza(harness.gateway, ME, message(str(number), str(number))) for number in range(3)]
        assert stored[1:] == [None, None]
        [notice] = [said for said in await harness.output_until_idle(stored[0]) if said not in ("receipt 0", "0")]
        assert notice.startswith("This conversation already has 1 message waiting")


async def test_a_message_that_cannot_be_stored_gets_no_receipt(database_url: str, expected_errors: ExpectedErrors) -> None:
    expect_failing_database(expected_errors, database_url, "cannot store a request of alice@localhost")
    async with run_gateway(database_url) as harness:

        def fail_receive(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
            for pending in batch:
                pending.rows = [(RECEIVE, ("no",) * 3) if row[0] == RECEIVE else row for row in pending.rows]
            write(batch)

        assert await harness.output_until_idle(receive_stanza(harness.gateway, ME, message("0"))) == [
            "receipt 0",
            "hi",
        ]
        harness.writes.on_batch = fail_receive
        stored = receive_stanza(harness.gateway, ME, message("1"))
        [apology] = await harness.output_until_idle(stored)
        assert apology.startswith("I cannot store anything at the moment")
        assert stored is not None
        assert stored.error is not None
