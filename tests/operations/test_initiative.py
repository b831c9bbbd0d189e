"""Operators and people see and steer notifications and schedules."""

from __future__ import annotations

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, command
from spade_coreason.exceptions import ConfigError, ForbiddenError, ServerError, StoreError
from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.storage.audit import AuditRecord
from tests.support.stored_initiative import NOTIFICATION, SCHEDULE, store_initiative
from tests.support.tester_host import TesterHost

AGENT, ALICE = "notes@localhost", "alice@localhost"


class Notes:
    """Answer with one word."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("done")


async def perform(tester: AgentTester, name: str, *, is_running: bool = True, **arguments: object) -> object:
    call = Call(TesterHost(tester, is_running=is_running), Actor(CallerKind.MACHINE_USER, "user tester"))
    return await OPERATIONS[name](call, OPERATIONS[name].read_arguments(arguments))


async def test_lists_have_no_content() -> None:
    async with AgentTester(Notes, jid=AGENT, user=ALICE) as t:
        await store_initiative(TesterHost(t).repository(AGENT), ALICE)
        listed = [await perform(t, "notifications.list", person=ALICE, state="bounced"), await perform(t, "schedules.list")]
        assert NOTIFICATION in str(listed[0])
        assert SCHEDULE in str(listed[1])
        assert "secret" not in str(listed)
        assert await perform(t, "notifications.list", state="sent") == []
        assert await perform(t, "schedules.list", owner="bob@localhost") == []


async def test_schedules_of_an_agent_that_left_are_listed_and_cancelled_and_do_not_run() -> None:
    async with AgentTester(Notes, jid=AGENT, user=ALICE) as t:
        repository = type(TesterHost(t).repository(AGENT))(TesterHost(t).repository(AGENT).database, "gone@localhost")
        await store_initiative(repository, ALICE)
        assert "runs=False" in str(await perform(t, "schedules.list"))
        with pytest.raises(ServerError, match="does not run here"):
            await perform(t, "schedules.run", id=SCHEDULE)
        await perform(t, "schedules.cancel", id=SCHEDULE[:8])
        assert await perform(t, "schedules.list") == []


async def test_a_schedule_runs_only_with_a_platform() -> None:
    async with AgentTester(Notes, jid=AGENT, user=ALICE) as t:
        await store_initiative(TesterHost(t).repository(AGENT), ALICE)
        with pytest.raises(StoreError, match="needs a running platform"):
            await perform(t, "schedules.run", is_running=False, id=SCHEDULE)


async def load_entries_of(t: AgentTester, person: str) -> list[AuditRecord]:
    return [record for record in await TesterHost(t).repository(AGENT).audit_trail.load_newest() if record.person == person]


async def test_people_list_and_cancel_their_reminders() -> None:
    async with AgentTester(Notes, jid=AGENT, user=ALICE) as t:
        await store_initiative(TesterHost(t).repository(AGENT), ALICE)
        assert "1. " in str(await t.say("/reminders"))
        assert "There is no reminder 2" in str(await t.say("/reminders cancel 2"))
        assert "Nothing is due" in str(await t.say("/reminders", user="bob@localhost"))
        assert "Cancelled" in str(await t.say("/reminders cancel 1"))
        assert "Nothing is due" in str(await t.say("/reminders"))
        [record] = await load_entries_of(t, ALICE)
        entry = record.entry
        assert entry is not None
        assert (entry["actor"], entry["action"], entry["resource"]) == (ALICE, "schedules.cancel", f"schedule {SCHEDULE}")


async def test_a_person_cancels_no_schedule_of_another() -> None:
    async with AgentTester(Notes, jid=AGENT, user=ALICE) as t:
        await store_initiative(TesterHost(t).repository(AGENT), ALICE)
        cancel = OPERATIONS["schedules.cancel"]
        bob = Call(TesterHost(t), Actor(CallerKind.PERSON, "bob@localhost", AGENT))
        for person, error in (("bob@localhost", ConfigError), (ALICE, ForbiddenError), (None, ForbiddenError)):
            with pytest.raises(error):
                await cancel(bob, cancel.read_arguments({"id": SCHEDULE, "agent": AGENT, "person": person}))
        assert SCHEDULE in str(await perform(t, "schedules.list"))
        assert await load_entries_of(t, ALICE) == []


async def test_operators_send_a_notification_again_and_delete_it() -> None:
    async with AgentTester(Notes, jid=AGENT, user=ALICE) as t:
        await store_initiative(TesterHost(t).repository(AGENT), ALICE)
        assert "waiting" in str(await perform(t, "notifications.retry", id=NOTIFICATION[:8]))
        assert (await t.message()).text == "a secret"
        await t.settled()
        assert NOTIFICATION in str(await perform(t, "notifications.list", state="sent"))
        await perform(t, "notifications.drop", id=NOTIFICATION)
        assert await perform(t, "notifications.list") == []
        for name in ("notifications.retry", "notifications.drop"):
            with pytest.raises(ConfigError, match="there is no notification"):
                await perform(t, name, id=NOTIFICATION)
        entries = await load_entries_of(t, ALICE)
        assert [str(record.entry["action"]) for record in entries if record.entry] == [
            "notifications.retry",
            "notifications.drop",
        ]


class OwnReminders(Notes):
    """An agent with a command of the same name as that of the platform."""

    @command("reminders", "show my own")
    async def reminders(self, session: Session) -> str:
        return "my own"


async def test_an_agents_own_command_takes_precedence() -> None:
    async with AgentTester(OwnReminders, jid=AGENT, user=ALICE) as t:
        assert await t.say("/reminders") == ["my own"]
