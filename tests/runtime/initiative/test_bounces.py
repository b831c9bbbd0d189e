"""Notifications that come back: their state is true, whatever comes first, the bounce or the acknowledgement of the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from spade_coreason.contracts import Notification, NotificationState
from spade_coreason.domain.messages import Bounce
from spade_coreason.runtime import AgentNetwork, OutboundMessage
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.clock import Clock
from tests.support.records import AGENT, ALICE
from tests.support.runner import RunnerHarness
from tests.support.transports import STANZA_BYTES
from tests.support.wait import eventually

BOUNCED, SENT, WAITING = NotificationState.BOUNCED, NotificationState.SENT, NotificationState.WAITING


class NotifyingHarness(RunnerHarness):
    """A runner that sends notifications to a network which does what the test says."""

    def __init__(self, database_url: str) -> None:
        self.messages: list[OutboundMessage] = []
        super().__init__(database_url, clock=Clock())

    def make_network(self) -> AgentNetwork:
        return XmppTransport(AGENT, self._take, STANZA_BYTES).network

    def _take(self, messages: Sequence[OutboundMessage]) -> None:
        self.messages += messages

    @property
    def notifier(self) -> Any:
        return self.runner.notifier

    async def notify(self) -> OutboundMessage:
        """Notify Alice, and return the message once it is sent."""
        await self.runner.control.notifications.notify(str(uuid4()), ALICE, None, dump_blocks("hello"), "")
        return await self.receive_message()

    async def receive_message(self) -> OutboundMessage:
        await eventually(lambda: bool(self.messages))
        return self.messages.pop()

    def send_back(self, message: OutboundMessage, *, sender: str = ALICE, is_temporary: bool = False) -> Any:
        """Let a message come back, and return the commit of that."""
        return self.notifier.receive_bounce(Bounce(sender, stanza_id_of(message), "service-unavailable", "", is_temporary))

    async def find(self, message: OutboundMessage) -> Notification:
        """Return the stored notification of a message, after all writes."""
        await self.database.write(lambda connection: None)
        found = await self.runner.control.notifications.find(stanza_id_of(message)[:36])
        assert found is not None
        return found


def stanza_id_of(message: OutboundMessage) -> str:
    return message.content.partition(" id='")[2].partition("'")[0] or message.content.partition(' id="')[2].partition('"')[0]


@pytest.mark.parametrize("is_acknowledged_first", [False, True])
@pytest.mark.parametrize(("is_temporary", "state"), [(False, BOUNCED), (True, WAITING)])
async def test_a_bounce_counts_whether_the_server_acknowledges_before_or_after_it(
    database_url: str, is_acknowledged_first: bool, is_temporary: bool, state: NotificationState
) -> None:
    async with NotifyingHarness(database_url) as harness:
        message = await harness.notify()
        if is_acknowledged_first:
            message.acknowledge()
        harness.send_back(message, is_temporary=is_temporary)  # nothing is stored yet
        message.acknowledge()
        found = await harness.find(message)
        assert (found.state, found.attempts) == (state, 1)
        assert not found.reason.startswith("service")
        if is_temporary:
            assert found.due_at == harness.clock() + timedelta(minutes=1)
            harness.clock.advance(minutes=1)  # type: ignore[attr-defined]  # a clock of the tests
            harness.runner.task_clock.check()
            again = await harness.receive_message()
            assert stanza_id_of(again) == stanza_id_of(message)
            message.acknowledge()  # that of the first attempt says nothing about the second
            assert (await harness.find(again)).state is WAITING
            again.acknowledge()
            assert (await harness.find(again)).state is SENT


async def test_a_bounce_is_stored_before_the_network_gets_its_acknowledgement(database_url: str) -> None:
    async with NotifyingHarness(database_url) as harness:
        message = await harness.notify()
        message.acknowledge()
        assert (await harness.find(message)).state is SENT
        assert await harness.send_back(message) is True
        assert (await harness.find(message)).state is BOUNCED
        assert await harness.send_back(message) is False  # an earlier bounce counts


async def test_a_bounce_of_another_sender_or_of_another_message_changes_nothing(database_url: str) -> None:
    async with NotifyingHarness(database_url) as harness:
        message = await harness.notify()
        assert harness.send_back(message, sender="eve@localhost") is None
        message.acknowledge()
        await harness.find(message)
        assert await harness.send_back(message, sender="eve@localhost") is False
        other = OutboundMessage(ALICE, f"<message id='{UUID(int=7)}'/>")
        assert await harness.send_back(other) is False
        assert harness.send_back(OutboundMessage(ALICE, "<message id='short'/>")) is None
        assert (await harness.find(message)).state is SENT


async def test_a_server_that_does_not_run_now_is_tried_again(database_url: str) -> None:
    async with NotifyingHarness(database_url) as harness:
        message = await harness.notify()
        harness.notifier.receive_bounce(Bounce(ALICE, stanza_id_of(message), "remote-server-not-found", "connection refused"))
        found = await harness.find(message)
        assert (found.state, found.due_at) == (WAITING, harness.clock() + timedelta(minutes=1))
        assert found.reason.startswith("the server of the person cannot be reached")
