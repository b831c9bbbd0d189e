"""Who hears that a message has arrived (XEP-0184), and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from spade_coreason import AgentDefinition, AgentRequest, Policy, ResponseHandler, Runner, SessionHandle
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.runtime.gateway import InboundGateway
from spade_coreason.runtime.peers import OpenRequests
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.storage.statements import RECEIVE
from tests.support.databases import SQLITE, WriteInterceptor, open_without_sync
from tests.support.errors import ExpectedErrors

AGENT = "echo@localhost"


class Echo:
    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])


class Doorway:
    """A door with an agent behind it, and what leaves: receipts by the id that they are for, answers by their text."""

    def __init__(self, door: InboundGateway, runner: Runner, writes: WriteInterceptor, said: list[str]) -> None:
        self.door, self.runner, self.writes, self.said = door, runner, writes, said

    async def hears(self, taken: asyncio.Future[bool] | None) -> list[str]:
        """What leaves until nothing is at work any more."""
        if taken is not None:
            await asyncio.wait([taken])
        await self.runner.wait_until_idle()
        said, self.said[:] = self.said[:], []
        return said


@asynccontextmanager
async def doorway(url: str, **policy: Any) -> AsyncIterator[Doorway]:
    writes = WriteInterceptor()
    database = await open_without_sync(url, writes)
    said: list[str] = []

    def send(stanzas: list[str]) -> None:
        for stanza in map(fromstring, stanzas):
            receipt = stanza.find("{urn:xmpp:receipts}received")
            said.append(f"receipt {receipt.get('id')}" if receipt is not None else stanza.findtext("body") or "")

    runner = Runner(Echo(), AGENT, AgentRepository(database, AGENT), Policy(**policy))
    await runner.open(send)
    try:
        yield Doorway(InboundGateway(runner, OpenRequests(), AccessPolicy(AGENT), send), runner, writes, said)
    finally:
        await runner.drain(1)
        await runner.close()
        await database.close()


def message(ident: str, text: str = "hi") -> Element:
    named = f"id='{ident}'" if ident else ""
    return fromstring(
        f"<message xmlns='jabber:client' type='chat' from='alice@localhost/x' to='{AGENT}' {named}>"
        f"<body>{text}</body><request xmlns='urn:xmpp:receipts'/></message>"
    )


async def test_a_receipt_comes_before_the_answer(database_url: str) -> None:
    async with doorway(database_url) as d:
        assert await d.hears(d.door.receive_stanza(message("1"))) == ["receipt 1", "hi"]


async def test_what_is_delivered_twice_has_two_receipts_and_one_answer(database_url: str) -> None:
    async with doorway(database_url) as d:
        assert await d.hears(d.door.receive_stanza(message("1"))) == ["receipt 1", "hi"]
        assert await d.hears(d.door.receive_stanza(message("1"))) == ["receipt 1"]


async def test_from_the_archive_only_what_is_new_has_a_receipt(database_url: str) -> None:
    async with doorway(database_url) as d:
        assert await d.hears(d.door.receive_stanza(message("1"))) == ["receipt 1", "hi"]
        assert await d.hears(await d.door.receive_archived(message("1"))) == []
        assert await d.hears(await d.door.receive_archived(message("2"))) == ["receipt 2", "hi"]


async def test_what_has_no_id_has_no_receipt(database_url: str) -> None:
    async with doorway(database_url) as d:
        assert await d.hears(d.door.receive_stanza(message(""))) == ["hi"]


async def test_what_is_not_kept_has_no_receipt(database_url: str) -> None:
    async with doorway(database_url, queue=1) as d:
        taken = [d.door.receive_stanza(message(str(number), str(number))) for number in range(3)]
        assert taken[1:] == [None, None]
        [notice] = [said for said in await d.hears(taken[0]) if said not in ("receipt 0", "0")]
        assert notice.startswith("1 messages of this conversation wait already")


async def test_what_cannot_be_stored_has_no_receipt(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("a request of alice@localhost is not stored")
    if not database_url.startswith(SQLITE):
        expected_errors("it is tried again every 5 s")
    async with doorway(database_url) as d:

        def spoiled(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
            write([([(RECEIVE, ("no",)) if one[0] == RECEIVE else one for one in rows], *rest) for rows, *rest in batch])

        assert await d.hears(d.door.receive_stanza(message("0"))) == ["receipt 0", "hi"]
        d.writes.on_batch = spoiled
        taken = d.door.receive_stanza(message("1"))
        [apology] = await d.hears(taken)
        assert apology.startswith("I cannot store anything at the moment")
        assert taken is not None
        assert taken.exception() is not None
