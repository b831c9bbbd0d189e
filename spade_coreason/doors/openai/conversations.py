"""The conversation to which a request belongs, and the request whose reply is its answer."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from uuid import UUID, uuid5

from ...contracts.times import utc_now
from ...storage import CallerRepository, Commit, DoorThread
from ..agents import CallerQuestion, DoorAgent
from ..caller import Caller
from .errors import AnswerError, reused_key
from .messages import UserMessage, digest_history

_NAMESPACE = UUID("0d6c2f0c-52d2-5a0e-8a55-0f7a0e3a2b61")
_PREFIX = "openai-"
_HEADERS = ("x-conversation-id", "x-openwebui-chat-id")
_NO_CONVERSATIONS = frozenset({"", "new", "null", "undefined"})
_NAME = re.compile(r"[\x21-\x7e]{1,200}")


def derive_request_id(caller: Caller, agent: str, key: str) -> UUID:
    """Return the id of the request with an `Idempotency-Key`."""
    return uuid5(_NAMESPACE, f"{caller.address}\0{agent}\0{key}")


def read_conversation_name(headers: dict[str, str], given: object = None) -> str | None:
    """Return the id of a conversation that a client names in a header, or in the body; None without one. Raise AnswerError."""
    if isinstance(given, dict):
        given = given.get("id")
    values = [given, *(headers.get(name) for name in _HEADERS)]
    for value in values:
        if value is None:
            continue
        # A front end sends nothing, or its placeholder, if the conversation has no id yet.
        text = value.strip() if isinstance(value, str) else "\n"
        if text in _NO_CONVERSATIONS or text.startswith("{{"):
            continue
        if not _NAME.fullmatch(text):
            raise AnswerError(400, "the id of a conversation has 1 to 200 characters of ASCII, without spaces")
        return text
    return None


@dataclass(slots=True)
class Place:
    """The place of a request: its conversation, and the request whose reply is its answer."""

    thread: str
    request_id: UUID
    """The id of the request as its client knows it."""
    target: UUID
    """The request whose reply is the answer: another one if the text answers a question of it."""
    is_named: bool
    """True if the client has named the conversation."""
    question: str | None = None
    """The id of the question that the text answers; None if it is a request."""
    is_new: bool = False
    """True if the request was not known before."""
    digests: tuple[bytes, ...] = ()
    """The digests of the rows that remember the request."""

    @property
    def is_answer(self) -> bool:
        """True if the text answers a question of the agent."""
        return self.target != self.request_id


class Conversations:
    """The conversations of a caller with an agent, as far as a client can name them."""

    def __init__(self, agent: DoorAgent, caller: Caller) -> None:
        self._agent = agent
        self._caller = caller
        self._repository: CallerRepository = agent.repository.callers

    async def enter(
        self, question: UserMessage, request_id: UUID, body: bytes, *, name: str | None = None, previous: UUID | None = None
    ) -> Place:
        """Return the place of a request, and remember it. `body` is the digest of what is asked.

        `name` is that of the conversation, or `previous` a request in it, if the client names one. Raise AnswerError if the id
        was used for something else, or if there is no such previous request.
        """
        owner, digest = self._caller.address, _digest("request", request_id.bytes)
        answer_digest = _digest("answer", f"{name or ''}\0".encode() + body)
        rows = await self._repository.find_threads(owner, [digest, answer_digest])
        known = rows.get(digest)
        is_new = known is None
        if known is None:
            thread = await self._find_thread(question, request_id, name, previous)
            request, answered = await self._find_answered(thread, question, previous, rows.get(answer_digest))
            new = DoorThread(thread, request or str(request_id), body, answered)
            if answered is not None:
                # It is stored before the answer is given: what is sent again answers the same question, or fetches.
                await self._repository.save_thread(owner, answer_digest, new, utc_now(), is_latest=True)
            known = await self._repository.save_thread(owner, digest, new, utc_now())
        if known.body != body or known.thread is None or known.request is None:
            raise reused_key()
        is_named = name is not None or previous is not None
        digests = digest, answer_digest
        return Place(known.thread, request_id, UUID(known.request), is_named, known.question, is_new, digests)

    async def find(self, request_id: UUID) -> Place | None:
        """Return the place of an earlier request; None without one."""
        digest = _digest("request", request_id.bytes)
        known = (await self._repository.find_threads(self._caller.address, [digest])).get(digest)
        if known is None or known.thread is None or known.request is None:
            return None
        return Place(known.thread, request_id, UUID(known.request), True, known.question, digests=(digest,))

    async def leave(self, place: Place) -> None:
        """Forget a request: it was refused, so its id is free again, or its client has deleted it."""
        await self._repository.delete_threads(self._caller.address, place.digests)

    async def remember_history(self, place: Place, message: UserMessage, answer: str, shown: CallerQuestion | None) -> None:
        """Remember by which messages a client will go on with the conversation, and which question it is shown."""
        rows: list[tuple[bytes, DoorThread]] = []
        history = digest_history([*message.earlier, ("user", message.text), ("assistant", answer)])
        if not place.is_named:
            rows.append((history, DoorThread(place.thread, None, None)))
        if shown is not None:
            row = DoorThread(place.thread, None, None, shown.id)
            where = str(place.request_id), f"{place.thread}\0{history.hex()}", shown.id
            rows += [(_digest_shown(each), row) for each in where]
        owner, now = self._caller.address, utc_now()
        if rows:
            await Commit.join([self._repository.save_thread(owner, *row, now, is_latest=True) for row in rows])

    async def find_question(self, target: UUID) -> CallerQuestion | None:
        """Return the oldest open question to the caller in a request; None without one."""
        return next(iter(await self._agent.find_questions(self._caller, target)), None)

    async def _find_thread(self, question: UserMessage, request_id: UUID, name: str | None, previous: UUID | None) -> str:
        if previous is not None:
            place = await self.find(previous)
            if place is None:
                text = "there is no previous response with this id; without one, a new conversation begins"
                raise AnswerError(400, text, "previous_response_not_found", param="previous_response_id")
            return place.thread
        if name is not None:
            return f"{_PREFIX}{name}"
        digests = [digest for digest in (question.history_digest, question.first_digest) if digest is not None]
        found = await self._repository.find_threads(self._caller.address, digests) if digests else {}
        threads = [found[digest].thread for digest in digests if digest in found]
        # It is derived, so that a request that is sent again is in the same conversation.
        return next((thread for thread in threads if thread is not None), f"{_PREFIX}{uuid5(_NAMESPACE, str(request_id)).hex}")

    async def _find_answered(
        self, thread: str, message: UserMessage, previous: UUID | None, repeated: DoorThread | None
    ) -> tuple[str | None, str | None]:
        """Return the ids of the request and the question that a message answers; None if it is a request itself.

        `repeated` is the row of the last message of the same text at the same place that was an answer.
        """
        owner, questions = self._caller.address, await self._agent.find_questions(self._caller)
        here = set(await self._repository.find_requests(owner, thread)) if questions else set[UUID]()
        questions = [each for each in questions if each.request_id in here]
        history = message.history_digest
        place = None if history is None else _digest_shown(f"{thread}\0{history.hex()}")
        if previous is not None:
            place = _digest_shown(str(previous))
        # With the name of its conversation alone, the same text may answer a later question.
        if repeated is not None and (
            place is not None
            or (
                all(str(each.request_id) == repeated.request for each in questions)
                and await self._agent.find_last_answered(self._caller, thread) in (None, repeated.question)
            )
        ):
            return repeated.request, repeated.question
        digests = [_digest_shown(each.id) for each in questions]
        shown = await self._repository.find_threads(owner, digests if place is None else [*digests, place]) if questions else {}
        row = None if place is None else shown.get(place)
        if row is not None or previous is not None:
            questions = [each for each in questions if row is not None and each.id == row.question]
        if len(questions) != 1 or _digest_shown(questions[0].id) not in shown:
            return None, None
        return str(questions[0].request_id), questions[0].id


def _digest(kind: str, ident: bytes) -> bytes:
    return hashlib.sha256(f"{kind}\0".encode() + ident).digest()


def _digest_shown(ident: str) -> bytes:
    """Return the digest of what tells that a question was shown: its id, its response, or its place in a history."""
    return _digest("shown", ident.encode())
