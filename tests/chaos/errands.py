"""Errands of agents: a time that is due later, and a payment that a person is asked about and has to approve.

People give an errand by its text, which is a query of its own. Whatever happens to the platform, each ends once, and nothing is
paid twice.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from spade_coreason import AgentRequest, Response, Session
from spade_coreason.domain.jid import bare_jid
from spade_coreason.exceptions import StepUncertainError
from tests.support.line_log import append_line, read_lines
from tests.support.servers.clients import StockClient

REMIND, PAY = "remind", "pay"
KINDS = (REMIND, PAY)
APPROVERS = "approvers"
"""The group of `access.groups` with the person who approves payments."""
_ERRAND = re.compile(rf"(?:{REMIND}|{PAY}) q\d+ \S+ \d+")
_ANSWER = re.compile(rf"({_ERRAND.pattern}) (is set|ends|is uncertain)")
_WAITING = re.compile(r"I have asked .+|This needs the approval of .+")
_CODE = re.compile(r"/(answer|approve) ([A-Z0-9]+)")
_MAX_DELAY_S = 4.0


def is_errand(query: str) -> bool:
    """Tell if a query is an errand."""
    return _ERRAND.fullmatch(query) is not None


async def do_errand(request: AgentRequest, session: Session, response: Response, approver: str, log: Path) -> None:
    """Do an errand, which is the query: set a time for it, and end it when it is due; or ask the approver, and pay."""
    errand = str(request.payload["query"])
    if "schedule" in request.metadata:
        await response.markdown(f"{errand} ends")
    elif errand.startswith(REMIND):
        await session.remind(timedelta(seconds=random.uniform(0.0, _MAX_DELAY_S)), errand)
        await response.markdown(f"{errand} is set")
    else:
        await response.ask_person(f"{errand}: are you there?", to=approver)
        try:
            await session.run_approved("pay", partial(append_line, log), errand, approvers=APPROVERS)
        except StepUncertainError:
            await response.markdown(f"{errand} is uncertain")
        else:
            await response.markdown(f"{errand} ends")


@dataclass
class Errands:
    """The errands that people gave, and the messages about them."""

    given: set[str] = field(default_factory=set)
    """Those that the server did not return."""
    ends: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The ids of the last answers to each."""
    uncertain: set[str] = field(default_factory=set)
    """Payments that were cut off. Their people are told that they may have been made."""
    questions: defaultdict[tuple[str, str], set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """The codes and message ids of the questions about each, by the command that answers them."""

    def note(self, text: str, ident: str, is_error: bool) -> bool:
        """Note a message to a person who gives errands. Return False if it is about none."""
        if is_error and is_errand(text):
            self.given.discard(text)
        elif found := _ANSWER.fullmatch(text):
            errand, outcome = found.groups()
            if outcome != "is set":
                self.ends[errand].add(ident)
            if outcome == "is uncertain":
                self.uncertain.add(errand)
        else:
            return _WAITING.fullmatch(text) is not None
        return True

    @property
    def open(self) -> set[str]:
        """The errands that have not ended."""
        return self.given - self.ends.keys()

    def count(self, kind: str) -> int:
        """Return how many of a kind were given."""
        return sum(errand.startswith(kind) for errand in self.given)

    def find_problems(self, failed: Iterable[str], log: Path) -> list[str]:
        """Return what went wrong, in words. An errand may fail, if its person is told so."""
        payments = Counter(errand for (errand,) in read_lines(log))
        asked_twice = [f"{errand}: /{verb}" for (errand, verb), found in self.questions.items() if len(found) > 1]
        return [
            *(f"lost: {errand}" for errand in self.open - set(failed)),
            *(f"ended twice: {errand}" for errand, idents in self.ends.items() if len(idents) > 1),
            *(f"paid twice: {errand}" for errand, count in payments.items() if count > 1),
            *(f"paid before it was approved: {errand}" for errand in payments if (errand, "approve") not in self.questions),
            *(f"ended and was not paid: {errand}" for errand in self._list_paid() if not payments[errand]),
            *(f"asked twice: {question}" for question in asked_twice),
        ]

    def _list_paid(self) -> list[str]:
        return [errand for errand in self.ends if errand.startswith(PAY) and errand not in self.uncertain]


async def approve(client: StockClient, errands: Errands) -> None:
    """Answer each question and approve each payment, until cancelled."""
    while True:
        message = await client.messages.get()
        text, sender = str(message["body"]), bare_jid(str(message["from"]))
        if message["type"] == "error":
            client.send(text, sender)  # the server has returned a command when a session of the agent ended
        elif (code := _CODE.search(text)) and (errand := _ERRAND.search(text)):
            errands.questions[errand[0], code[1]].add((code[2], str(message["id"])))
            client.send(f"/{code[1]} {code[2]}" + (" yes" if code[1] == "answer" else ""), sender)
