"""Requests to a capability: one of the agents that have it is chosen, and the answer is checked against its schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from itertools import count
from time import monotonic
from typing import Any

from ...contracts import AgentRequest
from ...contracts.json_schema import find_problems
from ...domain.cards import AgentCard, Capability, order_by_load
from ...exceptions import PeerFailedError, PeerRefusedError, PeerTimeoutError, PeerUnavailableError
from .peer_answers import PeerAnswer, PeerEvent, collect_answer

CAPABILITY_METADATA = "capability"
"""The metadata of a request that names the capability that it asks for."""


class CapabilityRequests:
    """The requests of one agent to capabilities. It remembers which agents it asked, so that it asks them in turn.

    `find` and `stream` are those of `Peers`.
    """

    def __init__(
        self, find: Callable[..., Awaitable[list[AgentCard]]], stream: Callable[..., AsyncGenerator[PeerEvent]]
    ) -> None:
        self._find = find
        self._stream = stream
        self._open: Counter[str] = Counter()
        self._last_asked: dict[str, int] = {}
        self._numbers = count(1)

    async def stream(
        self, capability: Capability, request: AgentRequest, timeout_s: float, **options: bool
    ) -> AsyncGenerator[tuple[str, PeerEvent]]:
        """Ask one agent after the other until one accepts the request. Yield its events, each with its JID.

        `options` are those of `Peers.stream`. The next agent is asked after a bounce or a refusal, and after nothing else.
        Raise the error of the last one.
        """
        deadline = monotonic() + timeout_s
        name = capability.name
        request = request.model_copy(update={"metadata": {**request.metadata, CAPABILITY_METADATA: name}})
        cards = order_by_load(await self._find(capability=name, timeout=timeout_s), self._open, self._last_asked)
        if not cards:
            problem = "is a capability of no agent that is online and may be asked; peers.find() lists the agents"
            raise PeerUnavailableError(name, problem)
        for card in cards:
            if (remaining_s := deadline - monotonic()) <= 0:
                raise PeerTimeoutError(card.jid, timeout_s)
            has_started = False
            try:
                async with aclosing(self._stream_from(card, name, request, remaining_s, options)) as events:
                    async for event in events:
                        if event.type == "request.refused" and card is not cards[-1]:
                            continue  # the error follows, and then the next agent
                        has_started = True
                        yield card.jid, event
                return
            except (PeerUnavailableError, PeerRefusedError):
                if has_started or card is cards[-1]:
                    raise

    async def _stream_from(
        self, card: AgentCard, name: str, request: AgentRequest, timeout_s: float, options: Mapping[str, bool]
    ) -> AsyncGenerator[PeerEvent]:
        """Ask one agent, and check its answer before the last event."""
        outputs = next((capability.outputs for capability in card.capabilities if capability.name == name), {})
        received: list[PeerEvent] = []
        self._last_asked[card.jid] = next(self._numbers)
        self._open[card.jid] += 1
        try:
            async with aclosing(self._stream(card.jid, request, timeout_s, **options)) as events:
                async for event in events:
                    if outputs:
                        received.append(event)
                        if event.type == "request.completed":
                            await _check_answer(card.jid, received, name, outputs)
                    yield event
        finally:
            self._open[card.jid] -= 1


async def _check_answer(jid: str, events: list[PeerEvent], name: str, outputs: Mapping[str, Any]) -> None:
    """Raise PeerFailedError if an answer does not fit the outputs of the capability `name`."""
    if (problem := await find_output_problem(collect_answer(jid, events), outputs)) is not None:
        raise PeerFailedError(jid, f'an answer that does not fit the outputs of its capability "{name}": {problem}')


async def find_output_problem(answer: PeerAnswer, outputs: Mapping[str, Any]) -> str | None:
    """Return the mistake in an answer and its place, or None.

    One data block of the answer has to fit the JSON Schema `outputs`. If there are several blocks, exactly one of them has to
    fit. A schema of the type `string` describes the text of the answer.
    """
    if outputs.get("type") == "string":
        return (await find_problems([answer.text], outputs, "text"))[0]
    if not answer.data:
        return "data: there is no data block, and one that fits the schema is expected"
    problems = await find_problems([block.get("data") for block in answer.data], outputs, "data")
    fitting = problems.count(None)
    if fitting == 1:
        return None
    if fitting:
        return f"data: {fitting} data blocks fit the schema, and one is expected"
    return problems[0] if len(problems) == 1 else f"none of {len(problems)} data blocks fits; the last one: {problems[-1]}"
