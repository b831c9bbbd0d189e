"""Notifications on real servers: how they come back and why, over two servers, and people who answer and refuse them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, Session
from spade_coreason.contracts import Notification, NotificationState
from spade_coreason.storage import count_stored
from tests.support.clock import Clock
from tests.support.hosting import Echo, OnlineAgent, run_agent, texts
from tests.support.servers.clients import StockClient
from tests.support.servers.federation import EAST, NOWHERE, federate, find_s2s_addresses
from tests.support.servers.kinds import make_server, on_both_servers
from tests.support.servers.profanity import Profanity, installed as has_profanity
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.muc.test_rooms import new_room, room_state
from tests.xmpp.muc.test_voice import MODERATED, run_in_room, set_role

BOUNCED, FAILED, REFUSED, SENT, WAITING = (
    NotificationState.BOUNCED,
    NotificationState.FAILED,
    NotificationState.REFUSED,
    NotificationState.SENT,
    NotificationState.WAITING,
)
CONTACTS = "ask the person to add this agent to their contacts"
Servers = tuple[XmppServer, XmppServer]


async def wait_until(agent: OnlineAgent, notification: Notification, condition: Callable[[Notification], bool]) -> Notification:
    """Wait until a stored notification meets a condition, and return it."""
    found = notification
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            while not condition(found := await agent.people.outcome(notification.id)):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
    assert condition(found), found
    return found


async def wait_for_state(agent: OnlineAgent, notification: Notification, state: NotificationState) -> Notification:
    """Wait until a notification is in a state, and return it."""
    return await wait_until(agent, notification, lambda found: found.state is state)


async def wait_for_retry(agent: OnlineAgent, notification: Notification, attempts: int) -> Notification:
    """Wait until a notification has come back from so many attempts and waits for the next one, and return it."""
    found = await wait_until(agent, notification, lambda found: found.attempts == attempts and bool(found.reason))
    assert found.state is WAITING
    return found


# How they come back


@on_both_servers
async def test_a_notification_that_cannot_arrive_bounces_with_what_to_do(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path, access=["*"]) as agent,
        StockClient(*await real_server.account(), real_server, plugins=["xep_0191"]) as blocking,
        StockClient(*await real_server.account(), real_server) as friend,
    ):
        await blocking.xmpp.plugin["xep_0191"].block(agent.jid, timeout=TIMEOUT_S)
        remedies = {
            f"nobody@{real_server.domain}": "check the address",
            blocking.jid: CONTACTS,
            new_room(): "there is no such address; check it",
            f"somebody@{NOWHERE}": {
                "prosody": "the server does not permit it; ask its operator",
                "ejabberd": "this agent may not write there",
            }[real_server.kind],
        }
        sent = {address: await agent.people.notify(address, "hello") for address in (*remedies, friend.jid)}
        assert (await friend.answer())["body"] == "hello"
        for address, remedy in remedies.items():
            assert remedy in (await wait_for_state(agent, sent[address], BOUNCED)).reason
        await wait_for_state(agent, sent[friend.jid], SENT)
        status = agent.host.status(await count_stored(agent.repository.database))
        assert status.notifications == {
            "bounced": len(remedies),
            "sent": 1,
        }
        assert blocking.messages.empty()


@pytest.mark.release
async def test_a_server_that_refuses_strangers_bounces_until_the_agent_is_a_contact(
    start_server: Callable[[XmppServer], XmppServer], tmp_path: Path
) -> None:
    server = make_server("ejabberd", tmp_path / "server")
    configuration = server.directory / "ejabberd.yml"
    module = "modules:\n  mod_block_strangers: {allow_local_users: false}\n"
    configuration.write_text(configuration.read_text().replace("modules:\n", module))
    start_server(server)
    async with run_agent(Echo(), server, tmp_path) as agent, StockClient(*await server.account(), server) as alice:
        notification = await agent.people.notify(alice.jid, "hello")
        reason = (await wait_for_state(agent, notification, BOUNCED)).reason
        assert reason.startswith(f"the server accepts messages of contacts only; {CONTACTS} (policy-violation")
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        async with asyncio.timeout(TIMEOUT_S):
            while (await alice.presences.get())["type"] != "subscribed":
                pass
        assert await agent.runner.control.notifications.retry(notification.id)
        async with asyncio.timeout(TIMEOUT_S):
            while (await alice.answer())["body"] != "hello":  # the agent greets a new contact, before or after it
                pass
        await wait_for_state(agent, notification, SENT)


async def test_a_notification_to_a_room_waits_for_voice_and_bounces_from_a_room_that_is_gone(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with run_in_room(Echo(), real_server, tmp_path, **MODERATED) as (owner, agent):
        await set_role(owner, "Echo", "visitor")
        await eventually(lambda: room_state(agent, owner.room) == "without voice")
        notification = await agent.people.notify(owner.room, "hello, all")
        await owner.receive_until("end")
        assert (await agent.people.outcome(notification.id)).state is WAITING
        await set_role(owner, "Echo", "participant")
        assert (await owner.receive_from("Echo"))["body"] == "hello, all"
        await wait_for_state(agent, notification, SENT)

        await set_role(owner, "Echo", "visitor")
        await eventually(lambda: room_state(agent, owner.room) == "without voice")
        notification = await agent.people.notify(owner.room, "goodbye, all")
        await owner.owner_query("<destroy/>", "owner")
        reason = (await wait_for_state(agent, notification, BOUNCED)).reason
        assert reason == "the room does not take it; invite the agent again, or write to another room (destroyed)"


async def test_a_room_that_the_agent_has_not_joined_is_refused_or_bounces(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_in_room(Echo(), real_server, tmp_path) as (owner, _), run_agent(Echo(), real_server, tmp_path) as other:
        refused = await other.people.notify(owner.room, "hello, all")
        assert refused.state is REFUSED
        assert refused.reason
        async with run_agent(Echo(), real_server, tmp_path, access=["*"]) as third:
            found = await wait_for_state(third, await third.people.notify(owner.room, "hello, all"), BOUNCED)
            assert found.reason.startswith(("there is no such account, or", "the server accepts messages of contacts only"))
        assert "hello, all" not in texts(await owner.receive_until("end"))


# Over two servers


@pytest.fixture
def own_federation(start_server: Callable[[XmppServer], XmppServer], tmp_path: Path) -> Servers:
    """Two servers that federate, which the test may stop."""
    west, east = federate(tmp_path, *find_s2s_addresses())
    return start_server(west), start_server(east)


async def test_a_notification_crosses_servers_and_waits_for_one_that_is_down(own_federation: Servers, tmp_path: Path) -> None:
    west, east = own_federation
    bob, clock = await east.account(), Clock()
    async with run_agent(Echo(), west, tmp_path, access=["*"], clock=clock) as agent:
        async with StockClient(*bob, east) as client:
            notification = await agent.people.notify(client.jid, "while it runs")
            assert (await client.answer())["body"] == "while it runs"
            await wait_for_state(agent, notification, SENT)
        nobody = await wait_for_state(agent, await agent.people.notify(f"nobody@{EAST}", "hello"), BOUNCED)
        assert "there is no such account" in nobody.reason

        await asyncio.to_thread(east.stop)
        notification = await agent.people.notify(bob[0], "while it is down")
        for attempt, minutes in enumerate((1, 5), 1):
            waiting = await wait_for_retry(agent, notification, attempt)
            assert waiting.due_at - clock.now == timedelta(minutes=minutes)
            assert waiting.reason.startswith("the server of the person cannot be reached; check the address")
            if attempt == 2:
                await asyncio.to_thread(east.start)
            clock.advance(minutes=minutes)
            agent.runner.task_clock.check()
        async with StockClient(*bob, east) as client:
            assert (await client.answer())["body"] == "while it is down"
        assert (await wait_for_state(agent, notification, SENT)).attempts == 3


async def test_a_domain_without_a_server_fails_after_five_tries(own_federation: Servers, tmp_path: Path) -> None:
    clock = Clock()
    async with run_agent(Echo(), own_federation[0], tmp_path, access=["*"], clock=clock) as agent:
        notification = await agent.people.notify(f"nobody@{NOWHERE}", "hello")
        for attempt, minutes in enumerate((1, 5, 30, 120), 1):
            assert (await wait_for_retry(agent, notification, attempt)).due_at - clock.now == timedelta(minutes=minutes)
            clock.advance(minutes=minutes)
            agent.runner.task_clock.check()
        failed = await wait_for_state(agent, notification, FAILED)
        assert failed.attempts == 5
        assert failed.reason.startswith("the server of the person cannot be reached; check the address")


async def test_a_notification_bounces_after_it_was_sent_and_the_agent_restarted(
    own_federation: Servers, tmp_path: Path
) -> None:
    west, east = own_federation
    async with (
        run_agent(Echo(), west, tmp_path, access=["*"]) as agent,
        StockClient(*await east.account(), east) as client,
    ):
        await agent.people.notify(client.jid, "the servers are connected")
        await client.answer()
        os.kill(east.pid, signal.SIGSTOP)
        try:
            notification = await agent.people.notify(f"nobody@{EAST}", "hello")
            await wait_for_state(agent, notification, SENT)
            await agent.restart()
            assert (await agent.people.outcome(notification.id)).state is SENT
        finally:
            os.kill(east.pid, signal.SIGCONT)
        assert "there is no such account" in (await wait_for_state(agent, notification, BOUNCED)).reason


# People


class Reminding:
    """Reminds at once of what it is asked, and knows what a person answers to."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("reminding")

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        query = request.payload["query"]
        if "schedule" in request.metadata:
            await response.markdown(f"Time for {query}!")
        elif query.startswith("remind me of "):
            await session.remind(timedelta(), query.removeprefix("remind me of "))
            await response.markdown("Yes.")
        elif query.startswith("every morning "):
            await session.remind("0 8 * * *", query.removeprefix("every morning "))
            await response.markdown("Every morning.")
        else:
            [last] = await session.history(1)
            await response.markdown(f"{query}: you answer '{last.output['text']}'")


async def test_a_person_with_a_plain_client_hears_reminders_answers_lists_and_switches_off(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(Reminding(), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await alice.ask("remind me of tea", agent.jid) == "Yes."
        assert (await alice.answer())["body"] == "Time for tea!"
        assert await alice.ask("done", agent.jid) == "done: you answer 'Time for tea!'"

        notification = await agent.people.notify(alice.jid, "The **oven** is on.")
        assert (await alice.answer())["body"] == "The *oven* is on."
        assert await alice.ask("so what", agent.jid) == "so what: you answer 'The *oven* is on.'"
        await wait_for_state(agent, notification, SENT)

        assert "notifications: off" in await alice.ask("/settings notifications off", agent.jid)
        refused = await agent.people.notify(alice.jid, "The oven is off.")
        assert (refused.state, "/settings notifications on" in refused.reason) == (REFUSED, True)
        assert await alice.ask("remind me of coffee", agent.jid) == "Yes."
        assert (await alice.answer())["body"] == "Time for coffee!"  # their own reminders still come
        assert "notifications: on" in await alice.ask("/settings notifications on", agent.jid)
        await agent.people.notify(alice.jid, "The oven is on again.")
        assert (await alice.answer())["body"] == "The oven is on again."

        assert await alice.ask("every morning bread", agent.jid) == "Every morning."
        assert " 08:00 (repeats: 0 8 * * *) bread\n" in await alice.ask("/reminders", agent.jid)
        assert (await alice.ask("/reminders cancel 1", agent.jid)).endswith("bread")
        assert await alice.ask("/reminders", agent.jid) == "Nothing is due for you."


async def test_a_person_with_profanity_hears_reminders_answers_lists_and_switches_off(
    real_server: XmppServer, tmp_path: Path
) -> None:
    require("profanity", has_profanity())
    account, name = await real_server.account(), f"r-{secrets.token_hex(3)}"
    async with (
        run_agent(Reminding(), real_server, tmp_path, name=name) as agent,
        Profanity(account, real_server, tmp_path / "profanity") as screen,
    ):
        jid = f"{agent.jid}/agent"
        await screen.type(f"/msg {agent.jid} remind me of tea")
        await screen.wait_for("me: remind me of tea", f"{jid}: Yes.", f"{jid}: Time for tea!")
        await screen.type("done")
        await screen.wait_for("me: done", f"{jid}: done: you answer 'Time for tea!'")
        await screen.type(" /settings notifications off")
        await screen.wait_for("notifications: off")
        assert (await agent.people.notify(account[0], "The oven is on.")).state is REFUSED
        await screen.type("remind me of coffee")
        seen = await screen.wait_for("me: remind me of coffee", f"{jid}: Yes.", f"{jid}: Time for coffee!")
        assert "oven" not in seen
        await screen.type("every morning bread")
        await screen.wait_for("me: every morning bread", f"{jid}: Every morning.")
        await screen.type(" /reminders")
        await screen.wait_for("me:  /reminders", "1. ", " 08:00 (repeats: 0 8 * * *) bread")
        await screen.type(" /reminders cancel 1")
        await screen.wait_for("Cancelled: ", "bread")
