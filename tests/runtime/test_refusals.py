"""Each refusal of a request is counted under its reason, as the metrics of the platform show it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session
from spade_coreason.contracts import ErrorCode, Interceptor, ReceivedRequest, Refuse
from spade_coreason.domain.channel_kinds import PERSON, PROGRAM
from spade_coreason.domain.messages import NO_CONTEXT, RequestContext
from spade_coreason.runtime.access.admission import MAX_COMMANDS_PER_MINUTE, MAX_HOPS
from spade_coreason.runtime.intake.request_intake import _MAX_DUPLICATES_PER_MINUTE as MAX_DUPLICATES_PER_MINUTE
from spade_coreason.runtime.observability.metrics import RefusalReason
from spade_coreason.testing import PlatformLimits, Policy, Rules
from tests.support.databases import SAME_STANZA
from tests.support.records import ALICE
from tests.support.requests import build_incoming
from tests.support.wait import TIMEOUT_S


class RefuseWord(Interceptor):
    """Refuses one word."""

    def receive(self, request: ReceivedRequest) -> Any:
        if request.payload.get("query") == "forbidden":
            return Refuse(ErrorCode.TOO_MANY_REQUESTS, "Not that.")
        return super().receive(request)


class Waiting:
    """An agent whose turns last until `release`, if the text is "wait"."""

    manifest = AgentDefinition.simple("agent")

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "wait":
            self.begun.set()
            await self.release.wait()
        await response.markdown("done")


def receive(t: AgentTester, text: str, number: object = 1, context: RequestContext = NO_CONTEXT, **fields: Any) -> None:
    """Let the agent receive a message of Alice, or with a context a request of a program."""
    kind = PERSON if context is NO_CONTEXT else PROGRAM
    request = build_incoming(text, ALICE, kind, stanza_id=str(number), thread=None, context=context, **fields)
    t.runners[t.jid].intake.receive(request)


async def wait_in_a_turn(t: AgentTester) -> Waiting:
    """Begin a turn that lasts."""
    agent = t.agent
    assert isinstance(agent, Waiting)
    receive(t, "wait", "wait")
    await asyncio.wait_for(agent.begun.wait(), TIMEOUT_S)
    return agent


async def exceed_the_conversation(t: AgentTester) -> None:
    for number in range(3):
        receive(t, "hello", number)


async def exceed_the_queue(t: AgentTester) -> None:
    agent = await wait_in_a_turn(t)
    for number in range(4):
        receive(t, "hello", number)
    agent.release.set()


async def arrive_late(t: AgentTester) -> None:
    receive(t, "hello", context=RequestContext(deadline=1.0))


async def send_too_many_commands(t: AgentTester) -> None:
    for number in range(MAX_COMMANDS_PER_MINUTE + 1):
        receive(t, "/help", number)


async def come_through_too_many_agents(t: AgentTester) -> None:
    receive(t, "hello", context=RequestContext(MAX_HOPS + 1))


async def come_during_a_deletion(t: AgentTester) -> None:
    assert await t.runners[t.jid].control.erasure.refuse_person(ALICE)
    receive(t, "hello")
    await t.runners[t.jid].control.erasure.admit_person(ALICE)


async def say_what_an_interceptor_refuses(t: AgentTester) -> None:
    receive(t, "forbidden")


async def repeat_too_often(t: AgentTester) -> None:
    agent = await wait_in_a_turn(t)
    for _ in range(1 + MAX_DUPLICATES_PER_MINUTE + 1):
        receive(t, "hello", evidence=SAME_STANZA)
    agent.release.set()


CASES: dict[RefusalReason, tuple[Callable[[AgentTester], Awaitable[None]], int]] = {
    "conversation": (exceed_the_conversation, 1),
    "queue": (exceed_the_queue, 2),
    "deadline": (arrive_late, 1),
    "commands": (send_too_many_commands, 1),
    "hops": (come_through_too_many_agents, 1),
    "deletion": (come_during_a_deletion, 1),
    "interceptor": (say_what_an_interceptor_refuses, 1),
    "duplicates": (repeat_too_often, 1),
}


@pytest.mark.parametrize("reason", CASES)
async def test_a_refusal_is_counted_under_its_reason(reason: RefusalReason) -> None:
    provoke, number = CASES[reason]
    policy = Policy(
        limits=PlatformLimits(queue=2 if reason == "queue" else 2 * MAX_DUPLICATES_PER_MINUTE),
        rules=Rules(max_interactions=2 if reason == "conversation" else 0),
    )
    async with AgentTester(Waiting, user=ALICE, policy=policy, interceptors=[RefuseWord()]) as t:
        await provoke(t)
        await t.settled()
        assert dict(t.runners[t.jid].metrics.refusals) == {reason: number}
