"""What both sides of a pair of agents share, with the standard library only: some run in an environment of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

MODULE_OF = {
    "slixmpp": "slixmpp_pair",
    "SPADE": "spade_pair",
    "hosted": "hosted_pair",
    "A2A": "a2a_pair",
    "AutoGen": "autogen_pair",
}
"""The module of each pair. Its functions are the roles, such as `answerer` and `asker`: context managers, given a `Place`.

The asker yields an `AskInConversation`. Every other role yields its address, which the role after it finds in its `Place`.
"""

TIMEOUT_S = 30.0
"""The most seconds that one ask may take."""
ROUND_S = 120.0
"""The most seconds that one round of one pair may take."""

AskInConversation: TypeAlias = Callable[[int, range], Coroutine[Any, Any, list[float]]]
"""Ask the questions with these numbers in conversation n, one after the other. Return the milliseconds of each."""


@dataclass(frozen=True)
class Place:
    """The server, the accounts of one process on it, the address that it asks, and a directory for its data."""

    directory: str
    address: str = ""
    host: str = ""
    port: int = 0
    ca_file: str = ""
    accounts: tuple[tuple[str, str], ...] = ()
    """Bare JIDs with their passwords."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it in one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Place:
        """Return the place of `to_json`."""
        return cls(**json.loads(text))


def question(number: int) -> str:
    """Build the text of an ask: a hundred characters in three words. No two of a run are equal: agents notice a mere echo."""
    return f"Question {number}: ".ljust(100, "x")


async def ask_in_turn(ask: Callable[[str], Awaitable[str]], numbers: Iterable[int]) -> list[float]:
    """Ask one question after the other. Return the milliseconds of each, or raise if a reply is not its question."""
    latencies_ms = []
    for number in numbers:
        text = question(number)
        begin = time.perf_counter()
        answer = await ask(text)
        latencies_ms.append((time.perf_counter() - begin) * 1e3)
        if answer != text:
            raise RuntimeError(f"asked {text!r}, the answer is {answer!r}")
    return latencies_ms
