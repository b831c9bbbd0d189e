"""`@subscribe`: the methods of an agent that handle the items of topics."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ...domain.topics import check_pattern
from ..function_agent import FunctionAgent

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[None]])

_MARK = "__spade_coreason_subscriptions__"
_PARAMETERS = 3  # request, session, response


@dataclass(frozen=True, slots=True)
class Subscription:
    """A pattern, and the handler of the items whose topics it matches."""

    pattern: str
    handle: Callable[..., Awaitable[Any]]


def subscribe(pattern: str, /) -> Callable[[Handler], Handler]:
    """Make a coroutine method `(self, request, session, response)` the handler of the items of topics: `@subscribe("news/#")`.

    `pattern` is a topic, or has `+` for any one segment, or `#` at its end for all the rest. `request.payload` is the
    published payload. `request.metadata` has `topic`, `publisher`, `published_at` and `item_id`. What the handler sends with
    `response` is dropped. If it raises, the broker delivers the item again.

    An agent may have several handlers, and a handler several patterns. The first one that matches gets the item, in the order
    of definition. For an agent that is a function, write `@subscribe` below `@agent`.

    TypeError or ValueError if the function or the pattern is unsuitable.
    """
    checked = check_pattern(pattern)

    def decorate(handler: Handler) -> Handler:
        if isinstance(handler, FunctionAgent):
            raise TypeError(f'@subscribe("{pattern}"): write it below @agent')
        if not inspect.iscoroutinefunction(cast(object, handler)):
            raise TypeError(f'@subscribe("{pattern}"): write the handler with `async def`')
        if len(inspect.signature(handler).parameters) < _PARAMETERS:
            raise TypeError(f'@subscribe("{pattern}"): the handler takes (self, request, session, response)')
        # Decorators run from the last to the first.
        setattr(handler, _MARK, (checked, *getattr(handler, _MARK, ())))
        return handler

    return decorate


def subscriptions_of(agent: object) -> list[Subscription]:
    """Return the subscriptions of an agent, in the order of definition; those of base classes come first."""
    if isinstance(agent, FunctionAgent):
        return [Subscription(pattern, agent.assist) for pattern in getattr(agent.function, _MARK, ())]
    members = {name: value for base in reversed(type(agent).__mro__) for name, value in vars(base).items()}
    return [
        Subscription(pattern, getattr(agent, name)) for name, value in members.items() for pattern in getattr(value, _MARK, ())
    ]
