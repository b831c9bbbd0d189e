"""A stand-in for the server of a model, in this process: what it is asked and what it answers, as on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StandInAnswer:
    """An HTTP answer. A TimeoutError or ConnectionError that `parts` raises breaks it off."""

    parts: AsyncGenerator[bytes, None]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class StandIn(Protocol):
    """A stand-in for the server of a model."""

    @property
    def url(self) -> str:
        """The base URL where an endpoint names none. Nothing connects to it."""
        ...

    @property
    def model(self) -> str:
        """The name of the model where an agent names none."""
        ...

    async def answer(self, path: str, body: dict[str, Any]) -> StandInAnswer:
        """Answer a request. TimeoutError if it is not answered in time, ConnectionError if the server is unreachable."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait before a further attempt."""
        ...


_current: ContextVar[StandIn | None] = ContextVar("stand_in", default=None)


@contextmanager
def install_stand_in(stand_in: StandIn) -> Iterator[None]:
    """Give the stand-in to all agents that are built within.

    It is not a parameter of agents, because the constructor of a subclass need not pass one on.
    """
    token = _current.set(stand_in)
    try:
        yield
    finally:
        _current.reset(token)


def find_stand_in() -> StandIn | None:
    """Return the stand-in for an agent that is built now."""
    return _current.get()


def encode_event(value: Mapping[str, Any] | None) -> bytes:
    """Encode an event of a stream. None is its end."""
    return f"data: {'[DONE]' if value is None else json.dumps(value)}\n\n".encode()
