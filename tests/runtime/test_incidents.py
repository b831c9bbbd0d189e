"""Incidents: each failure that a sender is told of is stored with its exceptions, before the sender is told."""

from __future__ import annotations

import asyncio
import re

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session
from spade_coreason.contracts import Accept, Interceptor, ReceivedRequest, Refuse
from spade_coreason.domain.texts.error_chain import find_frame
from spade_coreason.runtime import command
from spade_coreason.storage import Incident, IncidentRepository, to_micros
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Keep, Policy, Retention, RetentionStates, Rules
from tests.support.clock import Clock
from tests.support.databases import WriterGate, execute, open_without_sync, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, BOB
from tests.support.requests import build_incoming
from tests.support.runner import RunnerHarness, make_runtime
from tests.support.transports import make_network
from tests.support.wait import eventually

TOLD = re.compile(r"\(incident ([0-9a-f]{8})\)")


class FailingAgent:
    """Raises an exception that quotes the person."""

    manifest = AgentDefinition.simple("failing")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            raise KeyError(request.payload["query"])
        except KeyError as error:
            raise ValueError(f"cannot {request.payload['query']}") from error

    @command("fail", "fail at once")
    async def fail(self, session: Session) -> str:
        raise LookupError("as a command")


class WaitingAgent:
    """Waits without end."""

    manifest = AgentDefinition.simple("waiting")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await asyncio.Event().wait()


class FailingInterceptor(Interceptor):
    """Raises an exception for each request."""

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        raise ZeroDivisionError


async def load_all(harness: RunnerHarness) -> list[Incident]:
    return await IncidentRepository(harness.database, AGENT).load_page()


def numbers_told(harness: RunnerHarness) -> list[str]:
    return list(dict.fromkeys(number for stanza in harness.sent for number in TOLD.findall(stanza)))


async def test_the_incident_of_a_turn_is_stored_with_its_exceptions(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("ValueError: cannot dance")
    clock = Clock()
    async with RunnerHarness(database_url, FailingAgent(), clock=clock) as harness:
        await harness.receive_and_wait("dance")
        [incident] = await load_all(harness)
        assert [incident.incident] == numbers_told(harness)
        assert incident[3:6] == (ALICE, "t", to_micros(clock()))
        assert [(error.relation, error.type) for error in incident.chain] == [("", "KeyError"), ("cause", "ValueError")]
        place = find_frame(incident.chain)
        assert place is not None
        assert (place.file, place.function) == (__file__, "FailingAgent.assist")
    [row] = read_rows(database_url, "incidents")
    assert row["texts"] == '["\'dance\'", "cannot dance"]'
    assert "dance" not in row["errors"]


async def test_a_sender_is_told_when_the_incident_is_stored(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("ValueError: cannot dance", "a request of")
    for interceptors in ([], [FailingInterceptor()]):
        writes, sent = WriterGate(), list[str]()
        database = await open_without_sync(database_url, writes)
        repository = AgentRepository(database, AGENT)
        network = make_network(AGENT, sent.extend)
        runner = make_runtime(FailingAgent(), repository, network, interceptors=interceptors).runner
        await runner.open()
        before = len(read_rows(database_url, "incidents"))
        with writes.hold_batches() as batches:
            incoming = build_incoming("dance", ALICE)
            runner.intake.receive(incoming)
            await eventually(lambda batches=batches: len(batches) > 0)  # type: ignore[misc]  # mypy knows no type of it
            assert not any(TOLD.search(stanza) for stanza in sent)
        await eventually(lambda sent=sent: any(TOLD.search(stanza) for stanza in sent))  # type: ignore[misc]  # as above
        [told] = {number for stanza in sent for number in TOLD.findall(stanza)}
        rows = read_rows(database_url, "incidents")
        assert (len(rows), rows[-1]["incident"]) == (before + 1, told)
        await runner.drain(1)
        await runner.close()
        await database.close()


async def test_the_incident_of_an_interceptor_has_no_conversation(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors(f"a request of {ALICE}")
    async with RunnerHarness(database_url, FailingAgent(), interceptors=[FailingInterceptor()]) as harness:
        incoming = build_incoming("dance", ALICE)
        assert harness.runner.intake.receive(incoming) is None
        await eventually(lambda: bool(numbers_told(harness)))
        [incident] = await load_all(harness)
        assert [incident.incident] == numbers_told(harness)
        assert (incident.person, incident.conversation_id) == (ALICE, None)
        assert incident.chain[-1].type == "ZeroDivisionError"


async def test_the_incidents_of_commands_are_stored_too(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("LookupError: as a command")
    async with RunnerHarness(database_url, FailingAgent()) as harness:
        await harness.receive_and_wait("/fail")
        [fail] = [known for known in harness.runner.executor.commands.all if known.name == "fail"]
        told = TOLD.findall((await harness.runner.executor.run_command(ALICE, fail, {})).text)  # as from the menu of a client
        assert [incident.incident for incident in await load_all(harness)] == [*told, *numbers_told(harness)]


async def test_a_turn_that_takes_too_long_shows_where_it_waited(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than")
    async with AgentTester(WaitingAgent, policy=Policy(rules=Rules(assist_timeout_s=0.05))) as t:
        await t.say("wait")
        [incident] = await t.runners[t.jid].repository.incidents.load_page()
    assert incident.chain[-1].type == "TimeoutError"
    place = find_frame(incident.chain)
    assert place is not None
    assert (place.file, place.function) == (__file__, "WaitingAgent.assist")


async def test_what_is_forgotten_has_no_incidents(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("ValueError: cannot dance")
    async with RunnerHarness(database_url, FailingAgent()) as harness:
        for thread, sender in (("t", ALICE), ("u", ALICE), ("v", ALICE), ("t2", BOB)):
            await harness.receive_and_wait("dance", thread, sender)
        await harness.receive_and_wait("/forget yes", "t")
        assert [row["conversation_id"] for row in read_rows(database_url, "incidents")] == ["u", "v", "t2"]
        await harness.receive_and_wait("/forget me yes", "u")
        assert "the record of 2 failures" in "".join(harness.sent)
        assert [row["person"] for row in read_rows(database_url, "incidents")] == [BOB]


async def test_retention_deletes_incidents_by_the_shortest_age(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("ValueError: cannot dance")
    clock = Clock()
    rules = Retention(days=30, states=RetentionStates(completed=Keep(days=7)))
    async with RunnerHarness(database_url, FailingAgent(), Policy(rules=Rules(retention=rules)), clock) as harness:
        await harness.receive_and_wait("dance")
        clock.advance(days=6)
        await harness.receive_and_wait("dance")
        await harness.runner.conversations.retention_job.run()
        assert len(await load_all(harness)) == 2
        clock.advance(days=1, seconds=1)
        await harness.runner.conversations.retention_job.run()
        [incident] = await load_all(harness)
        assert incident.incident == numbers_told(harness)[-1]


async def test_an_incident_that_cannot_be_stored_is_told_and_in_the_log(
    database_url: str, expected_errors: ExpectedErrors, caplog: pytest.LogCaptureFixture
) -> None:
    expected_errors("ValueError: cannot dance")
    async with RunnerHarness(database_url, FailingAgent()) as harness:
        execute(database_url, "DROP TABLE incidents")
        await harness.receive_and_wait("dance")
        [told] = numbers_told(harness)
        assert f"{AGENT}: incident {told} cannot be stored and is in the log only: " in caplog.text
