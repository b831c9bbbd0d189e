"""What an agent stores and PostgreSQL refuses for its content, such as a null character, fails one request."""

from __future__ import annotations

from typing import cast

from spade_coreason import AgentRequest, AgentTester, Response, ResponseHandler, Session
from spade_coreason.contracts import AgentDefinition
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.servers.postgres import Postgres


class AskingAgent:
    """An agent that asks a question with a null character for "ask"."""

    manifest = AgentDefinition.simple("asking")

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        if request.payload["query"] == "ask":
            await cast(Response, response).ask_person("Which\0one?")
        await response.markdown("fine")


async def test_a_question_that_the_database_refuses_fails_its_request_and_no_other(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    """The person read that nothing can be stored at the moment, and the turn ran again every five seconds."""
    expected_errors("a request of tester@localhost failed: postgresql://", "invalid byte sequence")
    url = postgres.url()
    async with AgentTester(AskingAgent, database=url) as tester:
        assert await tester.say("ask") == ["Something went wrong on my side. Please try again later."]
        assert await tester.say("hi") == ["fine"]
    assert execute(url, "SELECT 1 FROM inbox WHERE state = 0") == []
