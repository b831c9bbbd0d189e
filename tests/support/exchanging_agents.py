"""Two agents that exchange requests, each in a process that tests kill. Both log what they do."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from spade_coreason import AgentDefinition, AgentRequest, Peers, Response, Retry, Session
from tests.support.line_log import append_line, read_lines


class LoggedAnswer(NamedTuple):
    """A line of a log: a question and the token of its answer."""

    query: str
    token: str


def write_answer(log: str, answer: LoggedAnswer) -> None:
    """Append a line."""
    append_line(Path(log), *answer)


def read_answers(log: str) -> list[LoggedAnswer]:
    """Return the lines of a log, in their order."""
    return [LoggedAnswer(*line) for line in read_lines(Path(log))]


class TokenAgent:
    """Answers each question with a new token, after a moment, and logs it."""

    manifest = AgentDefinition.simple("tokens")

    def __init__(self, log: str) -> None:
        self._log = log

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer with a token."""
        answer = LoggedAnswer(request.payload["query"], str(uuid4()))
        await asyncio.sleep(random.uniform(0, 0.02))
        write_answer(self._log, answer)
        await response.data({"query": answer.query, "token": answer.token})


class AskingAgent:
    """Asks a peer so many questions, three at once, logs each answer, and answers with all their tokens."""

    manifest = AgentDefinition.simple("asking")

    def __init__(self, peers: Peers, log: str, peer: str, asks: int) -> None:
        self._peers = peers
        self._log = log
        self._peer = peer
        self._asks = asks

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Ask, and answer with the tokens in the order of the questions."""
        query = request.payload["query"]
        slots = asyncio.Semaphore(3)

        async def ask(number: int) -> str:
            text = f"{query}/{number}"
            async with slots:
                answer = await self._peers.ask(self._peer, text, timeout=120, retry=Retry(attempts=20, wait_s=0.2, factor=1))
            token = str(answer.data[0]["data"]["token"])
            write_answer(self._log, LoggedAnswer(text, token))
            return token

        tokens = await asyncio.gather(*(ask(number) for number in range(self._asks)))
        await response.markdown(json.dumps({"query": query, "tokens": tokens}))
