"""The attacks, and the process of the attacker: `python -m tests.chaos.attacks` reads its task as JSON and writes its counts.

The attacker alternates between the agent and the echo, so both get the same stanzas at the same rate. That is the highest
rate that the server carries: after each batch a pacer asks both, and at most eight of its questions to each are open.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict

from spade_coreason.domain.jid import bare_jid
from tests.support.servers.raw_client import Login, RawClient, open_raw_client
from tests.support.wait import TIMEOUT_S

BODY = "{jabber:client}body"
_BATCH_BYTES = 65_536
_MAX_OPEN_BATCHES = 8
_PACE = "pace"
_MEGABYTE = "m" * 1_000_000
_DEPTH = 900
_WIDTH = 12_000
_DEEP = "<a xmlns='urn:deep'>" + "<a>" * _DEPTH + "</a>" * _DEPTH + "</a>"
_WIDE = "<a xmlns='urn:wide'>" + "<b/>" * _WIDTH + "</a>"


class Facts(TypedDict):
    """The facts that an attack may refer to: the id of an answer to the attacker, and the link to a file without end."""

    answer_id: str
    link: str


Stanza = Callable[[str, int, random.Random, Facts], str]
"""Return the stanza with a number to a bare JID."""


def _message(to: str, number: int, children: str, kind: str = "chat") -> str:
    return f"<message to='{to}' type='{kind}' id='m{number}'>{children}</message>"


def _iq(to: str, number: int, kind: str, children: str) -> str:
    return f"<iq to='{to}/agent' type='{kind}' id='i{number}'>{children}</iq>"


def _flood(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    return _message(to, number, f"<body>flood {number}</body>")


def _threads(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    return _message(to, number, f"<body>thread {number}</body><thread>t{rng.randrange(1000)}</thread>")


def _large_bodies(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    return _message(to, number, f"<body>{number} {_MEGABYTE}</body>")


def _adhoc_sessions(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    node = rng.choice(("history", "settings", "forget", "conversations", "help"))
    return _iq(to, number, "set", f"<command xmlns='http://jabber.org/protocol/commands' node='{node}' action='execute'/>")


def _odd_xml(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    payload = _DEEP if number % 2 else _WIDE
    match number // 2 % 5:
        case 0:
            return _message(to, number, f"<body>odd {number}</body>{payload}")
        case 1:
            return f"<presence to='{to}'>{payload}</presence>"
        case kind:
            return _iq(to, number, ("get", "set", "result")[kind - 2], payload)


def _reactions(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    reaction = f"<reaction>{rng.choice('👍👎🎉😀')}</reaction>"
    return _message(to, number, f"<reactions xmlns='urn:xmpp:reactions:0' id='{facts['answer_id']}'>{reaction}</reactions>")


def _corrections(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    replace = f"<replace xmlns='urn:xmpp:message-correct:0' id='m{max(0, number - 1)}'/>"
    return _message(to, number, f"<body>corrected {number}</body>{replace}")


def _retractions(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    if number % 2 == 0:
        return _message(to, number, f"<body>retracted {number}</body>")
    return _message(to, number, f"<retract xmlns='urn:xmpp:message-retract:1' id='m{number - 1}'/><body>It is retracted</body>")


def _replies(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    reply_id = facts["answer_id"] if number % 2 else f"unknown-{number}"
    return _message(to, number, f"<body>reply {number}</body><reply xmlns='urn:xmpp:reply:0' to='{to}' id='{reply_id}'/>")


def _receipts(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    if number % 2:
        return _message(to, number, f"<received xmlns='urn:xmpp:receipts' id='{facts['answer_id']}'/>")
    wanted = "<request xmlns='urn:xmpp:receipts'/><markable xmlns='urn:xmpp:chat-markers:0'/>"
    return _message(to, number, f"<body>receipt {number}</body>{wanted}")


def _presences(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    kind = rng.choice(("", "", " type='unavailable'", " type='probe'", " type='subscribe'", " type='unsubscribe'"))
    return f"<presence to='{to}'{kind}><status>{number}</status></presence>"


def _disco(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    query = rng.choice(("info", "items"))
    node = rng.choice(("", " node='http://jabber.org/protocol/commands'", f" node='n{number}'"))
    return _iq(to, number, "get", f"<query xmlns='http://jabber.org/protocol/disco#{query}'{node}/>")


def _caps(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    attributes = f"hash='sha-1' node='urn:attack' ver='{number:020d}{rng.getrandbits(32):08x}='"
    return f"<presence to='{to}'><c xmlns='http://jabber.org/protocol/caps' {attributes}/></presence>"


def _endless_files(to: str, number: int, rng: random.Random, facts: Facts) -> str:
    link = f"{facts['link']}?{number}"
    return _message(to, number, f"<body>{link}</body><x xmlns='jabber:x:oob'><url>{link}</url></x>")


@dataclass(frozen=True)
class Attack:
    """An attack: its stanzas, and whether the attacker reads what comes back."""

    name: str
    stanza: Stanza
    reads: bool = True
    is_short: bool = False
    """True if it is part of the short form."""


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("messages in one thread", _flood, is_short=True),
        Attack("1,000 threads", _threads),
        Attack("1 MB bodies", _large_bodies),
        Attack("ad-hoc sessions", _adhoc_sessions),
        Attack("deep and wide XML", _odd_xml),
        Attack("reactions", _reactions, is_short=True),
        Attack("corrections", _corrections),
        Attack("retractions", _retractions),
        Attack("replies", _replies),
        Attack("receipts", _receipts),
        Attack("presences", _presences),
        Attack("disco queries", _disco),
        Attack("new caps hashes", _caps),
        Attack("files without end", _endless_files),
        Attack("a reader that does not read", _flood, reads=False),
    )
}


class Task(TypedDict):
    """The task of the attacker. `targets` are the bare JIDs of the agent and the echo. The agent answers who is admitted.

    With `max_sent` it sends that number of stanzas to each target, as fast as the server reads them, and waits for nobody.
    """

    attack: str
    login: Login
    pacer: Login
    """The login of the pacer, whom both targets answer."""
    targets: list[str]
    is_admitted: bool
    link: str
    seconds: float
    seed: int
    max_sent: int | None


class Counts(TypedDict):
    """The stanzas sent to each target, and the time until the server had read them all."""

    sent: int
    seconds: float


async def _attack(task: Task) -> Counts:
    attack, rng = ATTACKS[task["attack"]], random.Random(task["seed"])
    async with open_raw_client(task["login"]) as client, open_raw_client(task["pacer"]) as pacer_client:
        client.send("<presence/>")
        pacer = _Pacer(pacer_client, task["targets"])
        facts = Facts(answer_id="none", link=task["link"])
        if task["is_admitted"]:
            facts["answer_id"] = await _ask(client, task["targets"][0])
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        pong = asyncio.Event()
        reader = asyncio.create_task(_discard(client, pong)) if attack.reads else None
        began_at, sent = time.monotonic(), 0
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(task["seconds"]):
                while sent != task["max_sent"]:
                    batch, size = [], 0
                    while size < _BATCH_BYTES and sent != task["max_sent"]:
                        for target in task["targets"]:
                            stanza = attack.stanza(target, sent, rng, facts)
                            batch.append(stanza)
                            size += len(stanza)
                        sent += 1
                    client.send("".join(batch))
                    await client.drain()
                    if task["max_sent"] is None:
                        await pacer.wait()
        pacer.close()
        if reader is not None:
            with suppress(ConnectionError, TimeoutError):
                client.send(f"<iq type='get' id='last' to='{client.domain}'><ping xmlns='urn:xmpp:ping'/></iq>")
                async with asyncio.timeout(TIMEOUT_S):
                    await pong.wait()
            reader.cancel()
        return Counts(sent=sent, seconds=time.monotonic() - began_at)


class _Pacer:
    """A second account that asks the targets after each batch, and waits while eight questions to one of them are open."""

    def __init__(self, client: RawClient, targets: Sequence[str]) -> None:
        self._client = client
        self._open_batches = {target: asyncio.Semaphore(_MAX_OPEN_BATCHES) for target in targets}
        self._sent = 0
        client.send("<presence/>")
        self._reader = asyncio.create_task(self._receive())

    async def wait(self) -> None:
        """Ask the targets, once each of them has answered all but seven questions."""
        self._sent += 1
        for target, open_batches in self._open_batches.items():
            await open_batches.acquire()
            self._client.send(_message(target, self._sent, f"<body>{_PACE} {self._sent:09}</body>"))
        await self._client.drain()

    def close(self) -> None:
        """Read no more answers."""
        self._reader.cancel()

    async def _receive(self) -> None:
        while True:
            element = await self._client.receive()
            if (element.findtext(BODY) or "").startswith(_PACE) and element.get("type") != "error":
                self._open_batches[bare_jid(element.get("from", ""))].release()


async def _discard(client: RawClient, pong: asyncio.Event) -> None:
    async for data in client.chunks():
        if b"last" in data:
            pong.set()


async def _ask(client: RawClient, to: str) -> str:
    """Ask the agent once, and return the id of its answer."""
    client.send(_message(to, 0, "<body>hello</body>").replace("m0", "hello"))
    while True:
        element = await client.receive()
        if element.findtext(BODY) == "hello" and element.get("type") != "error":
            return element.get("id", "")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_attack(json.loads(sys.stdin.readline())))))
