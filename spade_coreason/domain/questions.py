"""Questions to people: what they say, and which text answers which question. All pure."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from itertools import chain, count
from secrets import choice
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from pydantic_core import from_json

from ..contracts import RiskLevel
from .texts.approval_mark import MARK, quote_forgeries
from .texts.enumeration import did_you_mean
from .texts.json_text import dump_json
from .texts.translation import translate

MAX_QUESTION_CHARACTERS = 4000
QUESTION, APPROVAL = "question", "approval"
"""The kinds of questions."""
MAX_CHOICES = 20
MAX_OPEN_QUESTIONS = 20
"""The most open questions of an agent that a person is asked at once by others. Further ones wait for a place."""
MAX_TIMEOUT = timedelta(days=7)
"""The longest time that a question waits. So long, a repeated request of a program is recognised."""
MAX_CALL_CHARACTERS = 1500
"""The most characters of the arguments of a call that is to be approved, as a person has to read them."""
_MAX_MARKS = 4
"""The most combining marks on a letter. More of them cover what is around it."""
_RIGHT_TO_LEFT = {"R", "AL", "AN"}
_OTHER_DIRECTION = {"L", "EN", "AN"}
"""Letters from left to right, and digits, which are read so in every text (Unicode Standard Annex 9)."""
_CODE_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"  # without those that are taken for others
_CODE_CHARACTERS = 6
BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
"""Letters, marks and symbols that clients show as nothing or as a space (Unicode: Default_Ignorable_Code_Point, and U+2800)."""
_MARKS = "PsPePiPfPoPcSkMeCfCcZsZlZp"
"""The categories of the marks that may be around an answer."""
_MEANT = "?;\u061f\u055e\u1367\u2e2e\u203d%\u066a\u2030#&@/\\§"
"""The marks that change what they are beside: those of questions, percent, numbers and names."""
_VERBS = {("answer", True, True), ("approve", False, False), ("deny", False, False), ("deny", False, True)}
"""The verbs that name a question (True) or an approval by its code, with a text behind it (True) or none."""
_MAX_FOLDED = 1000
"""The most characters of a text that is compared without its marks."""


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """The rules of approvals. `groups` are the people (bare JIDs) who may approve, by the name of their group."""

    approvers: str | None = None
    """The group that approves where a call names none. None: the operators."""
    from_risk: RiskLevel | None = RiskLevel.CRITICAL
    """The risk from which a tool call needs an approval. None: from none on."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    operators: tuple[str, ...] = ()
    """The people who approve where no group is named, neither by the call nor as `approvers`."""
    timeout: timedelta = timedelta(days=1)
    per_requester: int = 5
    """The open questions of one requester that a person is asked at once while others ask too."""
    refusal: str = ""
    """The reason why approvals are refused here; "" if they are not."""
    page: str = ""
    """The address of the page in the browser if they are decided only there, because senders can be forged; else ""."""

    def has_place(self, person: str, requester: str, counts: Mapping[tuple[str, str], int]) -> bool:
        """Return True if a person is asked one more question of a requester now. False: they are asked later.

        `counts` are the open questions by person and requester, with those who have asked lately. No requester takes more
        than `per_requester` places from others.
        """
        own = counts.get((person, requester), 0)
        others = [count for (asked, other), count in counts.items() if asked == person and other != requester]
        if others and own >= self.per_requester:
            return False
        return own + sum(min(count, self.per_requester) for count in others) < MAX_OPEN_QUESTIONS

    def find_approvers(self, group: str | None) -> tuple[str, ...]:
        """Return the people (bare JIDs) of a group; of None those of `approvers`, or the operators.

        ValueError, which names the remedy, without any.
        """
        group = group or self.approvers
        if group is None:
            if not self.operators:
                raise ValueError(
                    "there are no operators; name a group of access.groups as approvals.approvers, or set access.operators"
                )
            return self.operators
        if group not in self.groups:
            remedy = did_you_mean(group, self.groups, f"define it: access: {{groups: {{{group}: [JID]}}}}")
            raise ValueError(f'there is no group "{group}"; {remedy}')
        people = tuple(person for person in self.groups[group] if "@" in person)
        if not people:
            raise ValueError(f'the group "{group}" names no account that can be asked; add JIDs to access.groups.{group}')
        return people


class OpenQuestion(Protocol):
    """A question that waits, as far as an answer needs it."""

    @property
    def kind(self) -> str:
        """The kind: "question" or "approval"."""
        ...

    @property
    def thread(self) -> str | None:
        """The thread of the conversation in which the person is asked."""
        ...

    @property
    def code(self) -> str: ...

    @property
    def choices(self) -> Sequence[str]: ...


class FoundAnswer(NamedTuple):
    """The question that a text answers, by its number in the list, and the answer."""

    number: int
    text: str
    verb: str = "answer"
    """The command that the text is: answer, approve or deny; "" if it does not name the question, by its code or as a reply."""


def derive_code(question_id: UUID) -> str:
    """Derive the code of a question, by which `/answer` names it. It is no secret."""
    digest = sha256(question_id.bytes).digest()
    return "".join(_CODE_LETTERS[byte % len(_CODE_LETTERS)] for byte in digest[:4])


def make_approval_code() -> str:
    """Make a code that cannot be guessed, for one approval."""
    return "".join(choice(_CODE_LETTERS) for _ in range(_CODE_CHARACTERS))


def find_answer(
    text: str, thread: str | None, replied_to: Sequence[bool], questions: Sequence[OpenQuestion]
) -> FoundAnswer | None:
    """Return the question that a text answers without naming it, and the answer; None if it is a request.

    `questions` are the open ones of the person, and `replied_to` tells for each if the text is a reply to it (XEP-0461).
    "approve K7QX2M" names one as the command does, because some clients take `/approve` for themselves. Other texts answer the
    only question of their conversation, if they are one of its choices or the number of one. An approval is never given so: it
    needs its code.
    """
    text = text.strip()
    verb, code, rest = (*text.split(None, 2), "", "", "")[:3]
    here: list[FoundAnswer] = []
    for number, question in enumerate(questions):
        is_question = question.kind == "question"
        if question.code == fold(code).upper() and (fold(verb), is_question, bool(rest)) in _VERBS:
            return FoundAnswer(number, rest, fold(verb))
        if text and is_question:
            choice = match_choice(text, question.choices)
            if replied_to[number]:
                return FoundAnswer(number, choice or text)
            if question.thread == thread:
                here.append(FoundAnswer(number, choice or "", ""))
    return here[0] if len(here) == 1 and here[0].text else None


def decide_plain_answer(came_at: int | None, shown_at: int | None, skew: int, *, is_repeated: bool) -> str | None:
    """Decide if a text answers a question that it does not name: it does if it came after that was handed to the stream.

    Return the verb as `FoundAnswer` has it: "" if it is not clear, so that the person has to name the question. None for a
    request. Times are in microseconds since 1970, and None if they are not known. `skew` is the most by which their clocks
    differ. `is_repeated` is True if the same text was an answer just before.
    """
    if is_repeated or came_at is None or shown_at is None or abs(came_at - shown_at) <= skew:
        return ""
    return "answer" if came_at > shown_at else None


def fold(text: str) -> str:
    """Return a text as it is compared: in NFKC, without case, with the digits of ASCII, and without the marks around it."""
    if len(text) > _MAX_FOLDED:
        return text.strip().casefold()
    folded = "".join([str(unicodedata.decimal(char, char)) for char in unicodedata.normalize("NFKC", text)]).casefold()
    marks = [char for char in folded if char in BLANK or (unicodedata.category(char) in _MARKS and char not in _MEANT)]
    return folded.strip("".join(marks)) or folded


def match_choice(text: str, choices: Sequence[str]) -> str | None:
    """Return the choice that a text is, or whose number it is, from 1, with or without marks around; None if it is none."""
    if text in choices:
        return text
    folded = fold(text)
    same = {known for known in choices if fold(known) == folded}
    if len(folded) <= 4 and folded.isascii() and folded.isdigit() and 1 <= int(folded) <= len(choices) and not same:
        return choices[int(folded) - 1]
    return same.pop() if len(same) == 1 else None


def parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the JSON value that a person means by a text, as far as the type of the schema tells; it is not checked here."""
    expected = schema.get("type")
    if expected == "string":
        return text
    if expected == "object" and not text.lstrip().startswith("{"):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and len(properties) == 1:
            [(name, inner)] = properties.items()
            return {name: parse_value(text, inner if isinstance(inner, Mapping) else {})}
    if (
        expected == "boolean"
        and (known := {"yes": True, "ja": True, "sí": True, "si": True, "no": False, "nein": False}.get(fold(text))) is not None
    ):
        return known
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    if expected == "object" and isinstance(value, dict):  # a form has texts
        inner_schemas = schema.get("properties") or {}
        for name, inner in inner_schemas.items():
            if isinstance(value.get(name), str) and isinstance(inner, Mapping):
                value[name] = parse_value(value[name], inner)
    return value


def describe_question(text: str, code: str, choices: Sequence[str]) -> str:
    """Return the text of a question with the ways to answer it, in Markdown."""
    numbered = [f"{number}. {choice}" for number, choice in enumerate(choices, 1)]
    if numbered:
        numbered.append("")
        hint = translate("Answer with a choice or its number, or write: /answer {code} CHOICE", code=code)
    else:
        hint = translate("Reply to this message, or write: /answer {code} YOUR ANSWER", code=code)
    return quote_forgeries("\n".join([text, "", *numbered, hint]))


def describe_call(name: str, arguments: Mapping[str, object] | Sequence[object], names: Sequence[str] = ()) -> str:
    """Return what a person has to read of a call before they approve it: its name, and each argument with its name.

    Each name and each value, as canonical JSON, has a line of its own. A line that mixes directions, in which its parts are
    shown in another order than they have, is followed by the same line with escapes. Nothing is hidden. `names` are those of
    the positional arguments; further ones have numbers. ValueError if it is too long to be read.
    """
    if isinstance(arguments, Mapping):
        pairs = [(key if key.isidentifier() else dump_json(key), arguments[key]) for key in sorted(arguments)]
    else:
        pairs = list(zip(chain(names, map(str, count(len(names) + 1))), arguments, strict=False))
    lines = [_show(line) for key, value in pairs for line in (f"{key}:", dump_json(value, is_canonical=True))]
    text = "\n".join(lines)
    if len(text) > MAX_CALL_CHARACTERS:
        raise ValueError(
            f"{name}: its arguments have {len(text):,} characters (limit: {MAX_CALL_CHARACTERS:,}), too many to be approved in"
            " a chat; pass a reference, such as an id"
        )
    return "\n".join([_show(name), *lines])


def _show(text: str) -> str:
    shown = escape_hidden(text)
    directions = set(map(unicodedata.bidirectional, shown))
    if directions & _RIGHT_TO_LEFT and directions & _OTHER_DIRECTION:
        return f"{shown}\n{escape_turned(shown)}"
    return shown


def escape_turned(text: str) -> str:
    """Return a text with an escape in place of each character that is written from right to left."""
    return "".join(_escape(char) if unicodedata.bidirectional(char) in _RIGHT_TO_LEFT else char for char in text)


def escape_hidden(text: str) -> str:
    """Return a text with an escape in place of each character that is not seen, or that changes how others are seen."""
    shown, marks = "", 0
    for char in text:
        kind = unicodedata.category(char)[0]
        marks = marks + 1 if kind == "M" else 0
        is_seen = char == " " or (kind not in "CZ" and char not in BLANK and marks <= _MAX_MARKS)
        shown += char if is_seen else _escape(char)
    return shown


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def describe_approval(call: str, requester: str, code: str, time_left: str, page: str = "") -> str:
    """Return the text by which a person is asked to approve a call, in Markdown. The platform writes it, no model does.

    `page` is that of `ApprovalPolicy`.
    """
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`*", call)))
    answer = (
        translate("Decide it in the browser: {url}. It ends in {time}.", url=page, time=time_left)
        if page
        else translate("Write /approve {code} or /deny {code}. It ends in {time}.", code=code, time=time_left)
    )
    return f"{describe_asker(requester)}\n\n{fence}\n{call}\n{fence}\n\n{answer}"


def describe_asker(requester: str) -> str:
    """Return the first line of an approval, which begins with the mark that nothing of an agent begins with."""
    if requester:
        return f"{MARK} {translate('{person} asks for this. It needs your approval:', person=requester)}"
    return f"{MARK} {translate('This needs your approval:')}"
