"""`@subscribe`: the methods of an agent that handle the items of topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...domain.topics import check_pattern
from ..marks import Handler, check_handler, find_marked

_MARK = "__spade_coreason_subscriptions__"


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
        check_handler(f'@subscribe("{pattern}")', handler)
        # Decorators run from the last to the first.
        setattr(handler, _MARK, (checked, *getattr(handler, _MARK, ())))
        return handler

    return decorate


def subscriptions_of(agent: object) -> list[Subscription]:
    """Return the subscriptions of an agent, in the order of definition; those of base classes come first."""
    return [Subscription(pattern, handle) for _, patterns, handle in find_marked(agent, _MARK) for pattern in patterns]
