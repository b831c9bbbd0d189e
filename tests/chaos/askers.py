"""The process of the people who ask: `python -m tests.chaos.askers` reads its task, asks until told to stop, and counts.

Each question has a text of its own, which the agents and the echo repeat.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from contextlib import AsyncExitStack, suppress
from typing import TypedDict
from xml.etree.ElementTree import Element

from spade_coreason.domain.jid import bare_jid
from tests.chaos.attacks import BODY
from tests.support.servers.raw_client import Login, RawClient, open_raw_client

_QUESTION = re.compile(r"q\d+-.+-\d+")


class Task(TypedDict):
    """The task: the logins of the askers, the interval between two questions to each target, and the wait for the last."""

    logins: list[Login]
    intervals_s: dict[str, float]
    wait_s: float


class Tally(TypedDict):
    """The count for one target."""

    asked: int
    answered: int
    errors: int
    """Answers that are errors, such as a bounce, or notices."""
    twice: int
    """Answers under a second id."""
    crossed: int
    """Answers to somebody else, or of somebody else."""
    times_s: list[float]


class Asker:
    """The questions and answers of one person."""

    def __init__(self, client: RawClient, name: str, tallies: dict[str, Tally]) -> None:
        self._client = client
        self._name = name
        self._tallies = tallies
        self._open: dict[str, tuple[str, float]] = {}
        self._answer_ids: dict[str, str] = {}
        self._failed: set[str] = set()

    async def ask(self, target: str, interval_s: float, delay_s: float) -> None:
        """Ask a target at an even rate, until cancelled."""
        number, next_at = 0, time.monotonic() + delay_s
        while True:
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            next_at += interval_s
            number += 1
            text = f"{self._name}-{target.partition('@')[0]}-{number}"
            self._tallies[target]["asked"] += 1
            self._open[text] = target, time.monotonic()
            self._client.send(f"<message to='{target}' type='chat' id='{text}'><body>{text}</body></message>")
            await self._client.drain()

    async def receive(self) -> None:
        """Take the answers, until cancelled."""
        while True:
            element = await self._client.receive()
            if element.tag == "{jabber:client}message":
                self._count(element)

    def _count(self, message: Element) -> None:
        text, sender = message.findtext(BODY) or "", bare_jid(message.get("from", ""))
        if message.get("type") == "error":
            if (question := self._open.pop(message.get("id", ""), None)) is not None:
                self._tallies[question[0]]["errors"] += 1
                self._failed.add(message.get("id", ""))
        elif (question := self._open.pop(text, None)) is not None:
            tally = self._tallies[question[0]]
            tally["crossed"] += sender != question[0]
            tally["answered"] += 1
            tally["times_s"].append(time.monotonic() - question[1])
            self._answer_ids[text] = message.get("id", "")
        elif text in self._answer_ids:
            self._tallies[sender]["twice"] += self._answer_ids[text] != message.get("id", "")
        elif text and sender in self._tallies and text not in self._failed:  # a question may bounce and be answered too
            print(f"{self._name}: {sender} says {text!r}", file=sys.stderr)
            self._tallies[sender]["crossed" if _QUESTION.fullmatch(text) else "errors"] += 1

    @property
    def is_done(self) -> bool:
        """True if no question is open."""
        return not self._open


async def _ask(task: Task) -> dict[str, Tally]:
    tallies = {jid: Tally(asked=0, answered=0, errors=0, twice=0, crossed=0, times_s=[]) for jid in task["intervals_s"]}
    async with AsyncExitStack() as stack:
        askers, tasks, readers = [], [], []
        for number, login in enumerate(task["logins"]):
            client = await stack.enter_async_context(open_raw_client(login))
            client.send("<presence/>")
            askers.append(Asker(client, f"q{number}", tallies))
            readers.append(asyncio.create_task(askers[-1].receive()))
        print("ready", flush=True)
        for number, asker in enumerate(askers):
            # All start at different times, so that they do not ask in bursts.
            for place, (target, interval_s) in enumerate(task["intervals_s"].items()):
                delay_s = interval_s * (number / len(askers) + place / len(task["intervals_s"]) / len(askers))
                tasks.append(asyncio.create_task(asker.ask(target, interval_s, delay_s)))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        with suppress(TimeoutError):
            async with asyncio.timeout(task["wait_s"]):
                while not all(tally["asked"] for tally in tallies.values()):  # noqa: ASYNC110 - a short run ends before the first
                    await asyncio.sleep(0.05)
        for asking in tasks:
            asking.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(task["wait_s"]):
                while not all(asker.is_done for asker in askers):  # noqa: ASYNC110 - there is no event for the last answer
                    await asyncio.sleep(0.05)
        for reader in readers:
            reader.cancel()
    return tallies


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_ask(json.loads(sys.stdin.readline())))))
