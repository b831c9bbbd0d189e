"""Marks of methods: decorators such as `@subscribe` leave them, and the agent is asked for the marked methods."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from .function_agent import FunctionAgent

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[None]])

_PARAMETERS = 3  # request, session, response


def check_handler(decorator: str, handler: Handler) -> None:
    """Raise TypeError unless a method is `async def` and takes a request. `decorator` is written as in the source."""
    if isinstance(handler, FunctionAgent):
        raise TypeError(f"{decorator}: write it below @agent")
    if not inspect.iscoroutinefunction(cast(object, handler)):
        raise TypeError(f"{decorator}: write the method with `async def`")
    if len(inspect.signature(handler).parameters) < _PARAMETERS:
        raise TypeError(f"{decorator}: the method takes (self, request, session, response)")


def find_marked(agent: object, mark: str) -> list[tuple[str, Any, Callable[..., Awaitable[Any]]]]:
    """Return the methods of an agent with a mark, in the order of definition: name, mark and method.

    Those of base classes come first. The method of an agent that is a function is its `assist`.
    """
    if isinstance(agent, FunctionAgent):
        found = getattr(agent.function, mark, None)
        return [] if found is None else [(agent.function.__name__, found, agent.assist)]
    members = {name: value for base in reversed(type(agent).__mro__) for name, value in vars(base).items()}
    marks = ((name, getattr(value, mark, None)) for name, value in members.items())
    return [(name, found, getattr(agent, name)) for name, found in marks if found is not None]
