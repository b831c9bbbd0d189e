"""What an agent reads and writes when it opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event

from spade_coreason.agents.echo import EchoAgent
from spade_coreason.testing import AgentTester


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements of all databases of the process."""
    executed: list[str] = []

    def record(connection: object, cursor: object, statement: str, *_: object) -> None:
        executed.append(" ".join(statement.split()))

    event.listen(Engine, "before_cursor_execute", record)
    yield executed
    event.remove(Engine, "before_cursor_execute", record)


async def test_agents_read_what_they_need_once_and_purge_nothing_in_a_new_database(statements: list[str]) -> None:
    agents = {f"agent{number}": EchoAgent for number in range(4)}
    async with AgentTester(EchoAgent, peers=agents):
        queries = [statement for statement in statements if not statement.startswith(("CREATE", "PRAGMA", "INSERT"))]
    kinds = Counter(" FROM ".join(query.split(" FROM ")[1:]).split()[0] for query in queries if " FROM " in query)
    assert (kinds["variables"], kinds["conversations"]) == (5, 5)
    assert Counter(queries)["BEGIN"] <= 10  # another read looks for row ids that other processes have taken
    assert [query for query in queries if query.startswith("DELETE")] == []
    assert [query for query in queries if " inbox" in query] == []


async def test_an_agent_that_opens_again_purges_its_old_requests(statements: list[str]) -> None:
    async with AgentTester(EchoAgent) as t:
        await t.ask("hello")
        await t.restart()
        assert len([statement for statement in statements if statement.startswith("DELETE FROM inbox")]) == 1
