"""Event emitters: one part announces an event, and other parts subscribe to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

P = ParamSpec("P")


class EventEmitter(Generic[P]):
    """Emits an event with the arguments `P`: `EventEmitter[[str, bool]]` calls its subscribers with a text and a bool."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def __iter__(self) -> Iterator[Callable[P, object]]:
        return iter(self._subscribers)

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        """Add a function that is called at each event, after those that were added before."""
        self._subscribers.append(subscriber)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the subscribers. An exception of one is raised at once."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)
