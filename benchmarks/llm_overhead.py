"""The CPU that an LLMAgent adds to a bare stream of the package `openai`: the same request, server and run for both."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import openai
from aiohttp import ClientSession

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Identity, Interaction
from spade_coreason.contracts.authoring import VariableScope
from spade_coreason.llm.agent import LLMAgent

from .agent_process import resident_kib
from .model_process import model_process
from .report import Target

SHORT, LONG = "1", "401"
"""The names of models, which are the tokens of their answers."""
_WARM = 10
_BATCH = 10


@dataclass(frozen=True)
class LLMOverhead:
    """µs of CPU in the process that asks: medians for answers of one token and of many, and the memory after many turns."""

    turns: int
    bare_us: float
    ours_us: float
    bare_token_us: float
    ours_token_us: float
    grown_kib: int
    """Resident memory at the end, less that after a tenth of the turns."""

    @property
    def added_us(self) -> float:
        """The CPU added to a turn."""
        return self.ours_us - self.bare_us

    @property
    def added_token_us(self) -> float:
        """The CPU added to a token."""
        return self.ours_token_us - self.bare_token_us


class _Session:
    """A `Session` of ten turns with a remembered fact. Its storage is measured elsewhere."""

    session_id = str(uuid4())
    identity = Identity(id="alice@localhost", name="alice", role="user")
    summary = ""

    def __init__(self) -> None:
        question = {"payload": {"query": "What is the weather?"}}
        self._window = [Interaction(input=question, output={"text": "It is sunny in Valencia."}) for _ in range(10)]

    async def window(self) -> list[Interaction]:
        return self._window

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        return self._window[-limit:]

    async def store(self, key: str, value: object, *, scope: VariableScope | None = None) -> None: ...

    async def get(self, key: str, default: object = None) -> object:
        return default

    def end(self) -> None: ...

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        return []


class _Handler:
    """A response handler that discards everything, and its stream."""

    async def create_stream(self) -> _Handler:
        return self

    async def write(self, piece: str) -> None: ...

    async def close(self) -> None: ...

    async def emit(self, event: object) -> None: ...


async def measure(turns: int, rounds: int) -> LLMOverhead:
    """Measure `rounds` of ten turns of each kind, in turn, then the memory after `turns` in all."""
    async with model_process() as url, openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
            memory = AgentInteractionMemory("bench@localhost", directory)
            await memory.aadd_information("one", "User prefers JSON")
            agents = {name: _build_agent(name, url, memory) for name in (SHORT, LONG)}
            operations: dict[str, Callable[[], Awaitable[None]]] = {}
            for name, agent in agents.items():
                operations[f"ours {name}"] = ours = _build_agent_turn(agent)
                await ours()
                operations[f"bare {name}"] = _build_bare_stream(client, await _load_last_request(url))
            medians = await _side_by_side(operations, rounds)
            grown = await _measure_growth(operations[f"ours {SHORT}"], turns)
            for agent in agents.values():
                await agent.shutdown()
    tokens = int(LONG) - int(SHORT)
    per_token = {kind: (medians[f"{kind} {LONG}"] - medians[f"{kind} {SHORT}"]) / tokens for kind in ("bare", "ours")}
    return LLMOverhead(turns, medians[f"bare {SHORT}"], medians[f"ours {SHORT}"], per_token["bare"], per_token["ours"], grown)


def targets(measured: LLMOverhead) -> list[Target]:
    """Build the targets: little CPU added, and no memory kept of a turn."""
    return [
        Target("LLMAgent, CPU added to a turn", measured.added_us / 1e3, "at most", 1, " ms"),
        Target("LLMAgent, CPU added to a token", measured.added_token_us, "at most", 20, " µs"),
        Target(f"LLMAgent, memory grown in {measured.turns:,} turns", measured.grown_kib / 1024, "at most", 2, " MiB"),
    ]


def lines(measured: LLMOverhead) -> list[str]:
    """Build the lines of both ways, for a turn and a token."""
    return [
        f"  a turn: {measured.bare_us:.0f} µs of CPU bare, {measured.ours_us:.0f} by LLMAgent;"
        f" a further token: {measured.bare_token_us:.1f} µs and {measured.ours_token_us:.1f}"
    ]


async def _side_by_side(operations: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, float]:
    durations_us: dict[str, list[float]] = {name: [] for name in operations}
    for operation in operations.values():
        for _ in range(_WARM):
            await operation()
    for _ in range(rounds):
        for name, operation in operations.items():
            gc.collect()
            begin = time.process_time()
            for _ in range(_BATCH):
                await operation()
            durations_us[name].append((time.process_time() - begin) / _BATCH * 1e6)
    return {name: statistics.median(durations) for name, durations in durations_us.items()}


async def _measure_growth(operation: Callable[[], Awaitable[None]], turns: int) -> int:
    before_kib = 0
    for number in range(turns):
        await operation()
        if number == turns // 10:
            gc.collect()
            before_kib = resident_kib()
    gc.collect()
    return resident_kib() - before_kib


def _build_agent(model: str, url: str, memory: AgentInteractionMemory) -> LLMAgent:
    manifest = AgentDefinition.simple("bench", system_prompt="You are a helpful assistant.")
    return LLMAgent(manifest, memory, model=model, endpoint={"url": url, "usage": False})


def _build_agent_turn(agent: LLMAgent) -> Callable[[], Awaitable[None]]:
    session: Any = _Session()
    response: Any = _Handler()

    async def operation() -> None:
        metadata = {"conversation_id": "one"}
        request = AgentRequest(session_id=uuid4(), payload={"query": "And tomorrow?"}, metadata=metadata)
        await agent.assist(request, session, response)

    return operation


def _build_bare_stream(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Callable[[], Awaitable[None]]:
    async def operation() -> None:
        async with await client.chat.completions.create(**request) as stream:
            async for chunk in stream:
                if chunk.choices:
                    _ = chunk.choices[0].delta.content

    return operation


async def _load_last_request(url: str) -> dict[str, Any]:
    async with ClientSession() as session, session.get(f"{url}/last") as response:
        body: dict[str, Any] = await response.json()
        return body
