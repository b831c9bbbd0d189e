"""The directory of several workers lists the agents of all of them, and no agent that is not configured any more."""

from __future__ import annotations

from collections.abc import Mapping

from spade_coreason.app.workers.directory import Listing, SharedDirectory, _adapter
from spade_coreason.contracts import AgentDefinition
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.cards import AgentCard, build_card
from spade_coreason.runtime import PlatformDirectory
from spade_coreason.storage import Leases, WorkerTerms, open_database
from tests.support.records import AGENT, OTHER_AGENT
from tests.support.servers.postgres import Postgres


class CountingDirectory(PlatformDirectory):
    """A directory that counts how often it gets the cards of the other workers."""

    times = 0

    def set_elsewhere(self, others: Mapping[str, tuple[AgentCard, AccessPolicy]]) -> None:
        self.times += 1
        super().set_elsewhere(others)


async def test_the_cards_of_other_workers_are_taken_again_only_after_a_change(postgres: Postgres) -> None:
    database = await open_database(postgres.url(), "off", terms=WorkerTerms("one", 3600))
    try:
        leases, directory = Leases(database), CountingDirectory()
        shared = SharedDirectory(leases, directory, lambda agent: {}, [AGENT])
        await leases.add_agents([AGENT])
        await leases.change(lambda state: [AGENT])
        for description, times in (("echo", 1), ("echo", 1), ("repeat", 2)):
            card = build_card(AGENT, AgentDefinition.simple(description))
            await leases.save_cards({AGENT: _adapter().dump_json(Listing(card, ["*"])).decode()})
            await shared.refresh()
            assert directory.times == times
        await leases.release(AGENT, "a test")
        await shared.refresh()
        assert directory.times == 3
    finally:
        await database.close()


async def test_an_agent_that_is_not_configured_any_more_is_listed_only_while_a_worker_serves_it(postgres: Postgres) -> None:
    url = postgres.url()
    first = await open_database(url, "off", terms=WorkerTerms("one", 3600))
    second = await open_database(url, "off", terms=WorkerTerms("two", 3600))
    try:
        leases, directory = Leases(first), PlatformDirectory()
        await leases.add_agents([AGENT, OTHER_AGENT])
        await leases.change(lambda state: [AGENT, OTHER_AGENT])
        cards = [build_card(agent, AgentDefinition.simple("echo")) for agent in (AGENT, OTHER_AGENT)]
        await leases.save_cards({card.jid: _adapter().dump_json(Listing(card, ["*"])).decode() for card in cards})
        shared = SharedDirectory(Leases(second), directory, lambda agent: {}, [AGENT])
        await shared.refresh()
        assert {card.jid for card in directory.list_for("alice@localhost")} == {AGENT, OTHER_AGENT}
        for agent in (AGENT, OTHER_AGENT):
            await leases.release(agent, "a test")
        await shared.refresh()
        assert {card.jid for card in directory.list_for("alice@localhost")} == {AGENT}
    finally:
        await first.close()
        await second.close()
