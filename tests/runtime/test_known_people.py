"""`peers.tell` to a person or a room is an error: their clients show no requests."""

from __future__ import annotations

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session, agent
from spade_coreason.exceptions import PeerError
from spade_coreason.testing import Policy

ADA = "ada@localhost"


class Reminder:
    """Tells the address in the question what time it is."""

    def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
        self.manifest = manifest
        self.peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await self.peers.tell(request.payload["query"], "It is time.")
        except PeerError as error:
            await response.markdown(f"error: {error}")
        else:
            await response.markdown("told")


@agent
async def worker(request: AgentRequest, session: Session, response: Response) -> None:
    await response.markdown("thanks")


@pytest.mark.parametrize("address", [ADA, f"{ADA}/phone", ADA.upper()])
async def test_telling_a_person_is_an_error_that_says_so(address: str) -> None:
    async with AgentTester(Reminder) as t:
        [text] = await t.say(address, user=ADA)
        jid = address.partition("/")[0]
        assert text == (
            f"error: {jid} was not notified: this is the address of a person, and agents cannot write to a person"
            " first; answer with `response` in a turn"
        )
        await t.settled()
        assert t.unread() == []


async def test_a_person_is_known_after_a_restart() -> None:
    async with AgentTester(Reminder) as t:
        await t.say("worker@localhost", user=ADA)
        await t.restart()
        assert "the address of a person" in (await t.ask(ADA, user="program@localhost")).text


async def test_a_sender_who_wrote_as_a_program_last_is_told() -> None:
    async with AgentTester(Reminder, peers={"worker": worker}) as t:
        assert await t.say("worker@localhost", user=ADA) == ["told"]
        assert (await t.ask(ADA, user=ADA)).text == "told"


async def test_agents_and_unknown_addresses_are_told() -> None:
    async with AgentTester(Reminder, peers={"worker": worker}) as t:
        for address in ("worker@localhost", "elsewhere@example.org"):
            assert await t.say(address) == ["told"]


async def test_an_operator_is_a_person_before_any_message() -> None:
    async with AgentTester(Reminder, policy=Policy(operators=frozenset({ADA}))) as t:
        assert "the address of a person" in (await t.ask(ADA, user="program@localhost")).text
