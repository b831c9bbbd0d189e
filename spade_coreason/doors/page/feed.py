"""The states that the page of a person is told, each with an id, and never a difference that it could miss.

So a reload, a second tab, a lost connection and a restart of the platform are one thing: the page connects again, and gets all
states anew. Most are read from the database, where everything is that was said in other clients too. The answers that are being
written are followed here from their first event, because thoughts are not stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias
from uuid import UUID

from pydantic_core import from_json, to_json

from ...contracts.times import utc_now
from ...domain.history import parse_interactions
from ...domain.identifiers import candidate_conversation_ids, choose_conversation_id, derive_request_key, recover_thread
from ...domain.questions import escape_turned
from ...domain.texts.translation import translate
from ...exceptions import StoreError
from ...operations.definition import Actor, Call, CallerKind
from ...operations.initiative.questions import APPROVAL, OwnQuestions, list_questions
from ...storage import ConversationTitle, Database, News, load_news, load_titles
from ..agents import DoorAgent
from ..caller import Caller
from ..channel import DoorEvent, DoorReply
from .markdown import parse_markdown, show_data, show_file

State: TypeAlias = dict[str, Any]
"""A state, as JSON. Its `type` names what it is about."""

_POLL_S = 1.0
_ACCESS_S = 5.0
"""The time after which it is looked again whether an agent is there, and whether the person has access."""
_FOLLOW_S = 3.0
"""The time after which it is looked again for answers that another worker has begun to write."""
_PIECE_S = 0.08
"""The time between two pieces of an answer that grows: the eye sees no more."""
_PARSE_FACTOR = 10
"""A text is parsed again after so many times the time that it took, so that it needs a tenth of the processor at most."""
_KEEP_ALIVE_S = 10.0
_KEPT_S = 10.0
"""The time for which the reply of a command, which is no turn, is there for a page that looks a moment later."""
_MAX_CONVERSATIONS = 50
_PAGE_TURNS = 20
_MAX_SHOWN_CHARACTERS = 1_000_000
"""The characters of turns after which no older ones are sent at once."""
_GOES_ON = frozenset({"parked", "interrupted"})
_TEXTS = frozenset({"chunk", "abort", "markdown"})
"""The ends of the types of events that change a text."""
_FIRST = frozenset({"notification", "schedule"})
"""The channels of turns that no message of the person has begun."""


@dataclass(slots=True)
class ShownConversation:
    """A conversation that is open in a tab, and what the page knows of it."""

    agent: str
    """The bare JID of the agent."""
    thread: str
    """The thread; "" for the conversation without one."""
    limit: int
    """The number of its newest turns that the tab shows."""
    row: int = 0
    turns: int = -1
    followed_at: float = 0.0
    stored: set[str] = field(default_factory=set)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def state(self, kind: str, /, **fields: Any) -> State:
        """Return a state of the conversation."""
        return {"type": kind, "agent": self.agent, "thread": self.thread, **fields}


@dataclass(slots=True)
class GrowingAnswer:
    """An answer that is being written, as it is now: its parts, and its state."""

    reply: DoorReply
    agent: str
    """The bare JID of the agent."""
    thread: str
    payload: Any
    at: str
    is_fetched: bool = False
    """True for the reply to an earlier request."""
    run: int = 0
    """The number of times that the answer has begun anew."""
    parts: dict[str, State] = field(default_factory=dict)
    """Its parts. A text that has grown has no `blocks` until it is parsed."""
    state: str = ""
    """The state, and "" while it is written."""
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _next_parse: float = 0.0
    task: asyncio.Task[None] | None = None
    """The task that reads the reply."""

    @property
    def key(self) -> str:
        """The inbox key of the request."""
        return str(derive_request_key(self.agent, self.reply.caller.address, self.reply.request_id))

    @property
    def id(self) -> str:
        """The id of the request, which is that of its turn in the page."""
        return str(self.reply.request_id)

    def take(self, event: DoorEvent) -> None:
        """Take the next event of the reply."""
        data, kind = event.data, event.type.rpartition(".")[2]
        ident, texts = str(data.get("stream_id", data.get("id"))), self._texts
        if event.is_final:
            # A reply that is only fetched may not be ready, which is no refusal of its request.
            self.state = "interrupted" if kind == "refused" and self.is_fetched else kind
            if self.state not in _GOES_ON and data.get("message"):
                self.parts["problem"] = {"kind": "error", "blocks": [data["message"]]}
            return
        match kind:
            case "repeated":
                self.run, self.parts, self.state = self.run + 1, {}, ""
                texts.clear()
            case "chunk":
                texts.setdefault(ident, []).append(data["chunk"])
            case "abort":
                texts[ident] = [data["replacement"]] if "replacement" in data else [*texts.get(ident, ()), " …"]
            case "markdown":
                texts[ident] = [data["content"]]
            case "data":
                self.parts[ident] = {"kind": "text", "blocks": show_data(data)}
            case "thought" | "error":
                self.parts[ident] = {"kind": kind, "blocks": [data.get("content") or data["user_message"]]}
        if kind in _TEXTS:
            self.parts[ident] = {"kind": "text"}

    async def parse(self, files_url: str) -> None:
        """Parse the texts that have grown, unless it is too early."""
        begin = time.monotonic()
        if begin < self._next_parse and not self.state:
            return
        for ident, part in list(self.parts.items()):
            if "blocks" not in part:
                part["blocks"] = await parse_markdown("".join(self._texts[ident]), files_url)
        self._next_parse = time.monotonic() + _PARSE_FACTOR * (time.monotonic() - begin)


class Hub:
    """The common things of all open pages: the answers that are being written, and a signal for each person."""

    def __init__(self) -> None:
        self.answers: dict[str, GrowingAnswer] = {}
        """The answers by the inbox keys of their requests."""
        self.is_stopping = False
        self._signals: dict[str, asyncio.Event] = {}
        self._wanted: dict[str, str] = {}
        """The people (bare JIDs) whose news the next read has, by the secrets of their sessions."""
        self._agents: set[str] = set()
        self._next: asyncio.Task[dict[str, dict[str, News]]] | None = None
        self._lock = asyncio.Lock()

    async def load_news(self, database: Database, session: str, person: str, agents: Sequence[str]) -> dict[str, News] | None:
        """Return what is new for a person (a bare JID), by agent; None if the session with that secret has ended.

        What is asked while a read runs is one read after it, so that thousands of open pages are few reads.
        """
        self._wanted[session] = person
        self._agents.update(agents)
        if self._next is None:
            self._next = asyncio.create_task(self._read_news(database))
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())  # everybody may have left
        return (await asyncio.shield(self._next)).get(session)

    async def _read_news(self, database: Database) -> dict[str, dict[str, News]]:
        async with self._lock:
            wanted, agents, self._wanted, self._agents, self._next = self._wanted, self._agents, {}, set(), None
            return await load_news(database, wanted, list(agents), utc_now())

    def follow(self, answer: GrowingAnswer) -> None:
        """Follow an answer to its end, unless that is done already."""
        if answer.key in self.answers:
            answer.reply.close()
            return
        self.answers[answer.key] = answer
        answer.task = asyncio.create_task(self._read(answer))
        self.wake(answer.reply.caller.address)

    async def _read(self, answer: GrowingAnswer) -> None:
        reply = answer.reply
        try:
            async for event in reply:
                answer.take(event)
                self.wake(reply.caller.address)
        finally:
            reply.close()
            asyncio.get_running_loop().call_later(_KEPT_S, self.answers.pop, answer.key, None)
            answer.state = answer.state or "interrupted"
            self.wake(reply.caller.address)

    def wake(self, person: str) -> None:
        """Let the pages of a person (a bare JID) look now."""
        if signal := self._signals.pop(person, None):
            signal.set()

    def signal(self, person: str) -> asyncio.Event:
        """Return what is set when the pages of a person are to look."""
        return self._signals.setdefault(person, asyncio.Event())

    def stop(self) -> None:
        """End all feeds. Their pages connect again until the platform is back."""
        self.is_stopping = True
        for person in list(self._signals):
            self.wake(person)


@dataclass(eq=False)
class Feed:
    """The states for the page of one person: of all agents, and of the conversations that are open in tabs."""

    hub: Hub
    agents: Mapping[str, DoorAgent]
    """All agents of the page, by their bare JIDs."""
    caller: Caller
    session: str
    """The secret of the session."""
    places: Sequence[ShownConversation]
    files_url: str
    """The address of all files, with a slash at its end."""
    _looked_at: float = -_ACCESS_S
    _checked_at: float = -_ACCESS_S
    _allowed: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    _news: dict[str, News] = field(default_factory=dict)
    _questions: dict[str, list[State]] = field(default_factory=dict)
    _sent: dict[str, State] = field(default_factory=dict)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield states, a line of JSON each, until the page is closed, the session ends, or the platform stops."""
        last_line = time.monotonic()
        while not self.hub.is_stopping:
            signal, states, problem = self.hub.signal(self.caller.address), list[State](), ""
            try:
                states += await self._look_at_answers()
                has_ended = any(state["state"] for state in states)
                if has_ended or time.monotonic() - self._looked_at >= _POLL_S:
                    self._looked_at = time.monotonic()
                    states += await self._look()
            except PermissionError:
                return
            except (StoreError, ConnectionError):
                problem = translate("The platform cannot be reached at the moment.")
            states.append({"type": "problem", "text": problem})
            if new := [state for state in states if "thread" in state or self._sent.get(state["type"]) != state]:
                self._sent |= {state["type"]: state for state in new}
                last_line = time.monotonic()
                yield b"".join(to_json(state) + b"\n" for state in new)
                await asyncio.sleep(_PIECE_S)
            elif time.monotonic() - last_line > _KEEP_ALIVE_S:
                last_line = time.monotonic()
                yield b'{"type":"alive"}\n'
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await signal.wait()

    # What is stored

    async def _look(self) -> list[State]:
        person, agents = self.caller.address, self.agents
        database = next(iter(agents.values())).repository.database
        news = await self.hub.load_news(database, self.session, person, list(agents))
        if news is None:
            raise PermissionError
        if time.monotonic() - self._checked_at >= _ACCESS_S:
            self._checked_at = time.monotonic()
            self._allowed = await list_allowed(agents.values(), self.caller, self._allowed)
        before, self._news = self._news, {jid: news.get(jid, News()) for jid in self._allowed}
        states = []
        if before != self._news or "conversations" not in self._sent:
            listed = await load_titles(database, person, list(self._allowed), _MAX_CONVERSATIONS)
            states.append({"type": "conversations", "conversations": [describe_conversation(each, person) for each in listed]})
        for jid, found in self._news.items():
            if before.get(jid, News()).questions != found.questions:
                self._questions[jid] = await self._list_questions(agents[jid])
        states.append({"type": "agents", "agents": [self._describe_agent(agents[jid]) for jid in self._allowed]})
        for place in self.places:
            if self._allowed.get(place.agent, (False,))[0]:
                agent = agents[place.agent]
                if is_new := place.turns < 0 or before.get(agent.jid) != self._news[agent.jid]:
                    states += await self._look_at_turns(place, agent)
                if is_new or time.monotonic() - place.followed_at >= _FOLLOW_S:
                    place.followed_at = time.monotonic()
                    await self._follow_open(place, agent)
        return states

    def _describe_agent(self, agent: DoorAgent) -> State:
        is_open, is_paused = self._allowed[agent.jid]
        about = next((each.description for each in agent.manifest.capabilities if each.description), "")
        examples = (agent.manifest.custom_metadata or {}).get("examples")
        about = about and translate(about)
        status = "" if is_open else translate("is away at the moment")
        return {
            "name": agent.name,
            "jid": agent.jid,
            "about": about,
            "status": translate("is paused, and answers later") if is_paused else status or about,
            "examples": [str(each) for each in examples] if isinstance(examples, list | tuple) else [],
            "questions": self._questions.get(agent.jid, []),
        }

    async def _list_questions(self, agent: DoorAgent) -> list[State]:
        own = OwnQuestions(agent=agent.jid, person=self.caller.address)
        return [
            {
                "agent": agent.jid,
                "kind": each.kind,
                "code": each.code,
                # A call is shown as it is stored, and none of its characters changes the order of others.
                "call": escape_turned(each.text) if each.kind == APPROVAL else "",
                "blocks": await parse_markdown(each.text, self.files_url) if each.kind != APPROVAL else [],
                "choices": each.choices,
                "label": f"{translate('{name} asks for your approval', name=agent.name)} ({each.requester})"
                if each.kind == APPROVAL
                else translate("{name} asks you", name=agent.name),
                "schema": each.schema,
            }
            for each in await list_questions(make_call(agent, self.caller), own)
        ]

    async def _look_at_turns(self, place: ShownConversation, agent: DoorAgent) -> list[State]:
        person = self.caller.address
        candidates = candidate_conversation_ids(place.thread or None, person, agent.jid)
        found = await agent.repository.find_conversations(candidates)
        own_id = choose_conversation_id(candidates, person, {ident: each.owner for ident, each in found.items()})
        record = found.get(own_id or "")
        row, turns = (record.id, record.turns) if record is not None else (0, 0)
        if (row, turns) == (place.row, place.turns):
            return []
        is_whole = place.turns < 0 or row != place.row or turns < place.turns
        number = place.limit if is_whole else min(turns - place.turns, place.limit)
        shown = list[State]()
        size = 0
        for offset in range(0, number, _PAGE_TURNS):
            texts = await agent.repository.turns.load_history(row, min(_PAGE_TURNS, number - offset), offset)
            shown[:0] = [await self._show_turn(turn.dump()) for turn in parse_interactions(texts)]
            if (size := size + sum(map(len, texts))) > _MAX_SHOWN_CHARACTERS:
                number = len(shown)
                break
        place.row, place.turns = row, turns
        place.stored |= {turn["id"] for turn in shown}
        return [place.state("turns", turns=shown, is_whole=is_whole, has_more=is_whole and turns > number, count=turns)]

    async def _follow_open(self, place: ShownConversation, agent: DoorAgent) -> None:
        """Follow the answers of before a restart, and those that were asked by another worker."""
        for each in await agent.requests.list_open(self.caller):
            request = from_json(each.request)
            request_id, at = UUID(str(request["request_id"])), each.received_at.isoformat()
            key = str(derive_request_key(agent.jid, self.caller.address, request_id))
            is_here = key not in self.hub.answers and (request.get("thread") or "") == place.thread
            if is_here and (reply := await agent.backend.fetch(self.caller, request_id, waits=True)) is not None:
                self.hub.follow(GrowingAnswer(reply, agent.jid, place.thread, request["payload"], at, is_fetched=True))

    async def _show_turn(self, turn: Mapping[str, Any]) -> State:
        await asyncio.sleep(0)  # there may be many, and others are to be answered meanwhile
        output, meta = turn["output"], turn.get("meta", {})
        is_first, parts = meta.get("channel") in _FIRST, list[State]()
        if text := output.get("text"):
            parts.append({"kind": "text", "blocks": await parse_markdown(text, self.files_url)})
        parts += [{"kind": "text", "blocks": show_data(data)} for data in output.get("data", ())]
        if error := output.get("error"):
            parts.append({"kind": "error", "blocks": [str(error.get("user_message"))]})
        return {
            # That of its request, as in the state of an answer.
            "id": str(meta.get("request_id") or turn["interaction_id"]),
            "at": turn["timestamp"],
            "me": None if is_first or turn.get("input") is None else self._show_payload(turn["input"]),
            "is_first": is_first,
            "parts": parts,
        }

    def _show_payload(self, payload: Any) -> State:
        if not isinstance(payload, Mapping):
            return {"text": str(payload), "files": []}
        given, text = payload.get("attachments"), str(payload.get("query", ""))
        files = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
        is_link = text == "\n".join(str(file.get("url")) for file in files)
        shown = [
            show_file(str(one.get("url")), str(one.get("name") or ""), self.files_url, str(one.get("type") or ""))
            for one in files
        ]
        return {"text": "" if is_link else text, "files": shown}

    # Answers that grow

    async def _look_at_answers(self) -> list[State]:
        person, found = self.caller.address, list[State]()
        for answer in list(self.hub.answers.values()):
            for place in self.places:
                is_here = answer.reply.caller.address == person and (answer.agent, answer.thread) == (place.agent, place.thread)
                if is_here and answer.id not in place.stored:
                    await answer.parse(self.files_url)
                    found += self._show_answer(place, answer)
        return found

    def _show_answer(self, place: ShownConversation, answer: GrowingAnswer) -> list[State]:
        """Return the state of an answer that has changed: new parts, and the last blocks of those that have grown."""
        fields, parts, sent = {}, list[State](), place.answers.get(answer.id)
        if sent is None or sent["run"] != answer.run:
            sent = place.answers[answer.id] = {"run": answer.run, "state": ""}
            # One from before a restart has no parts at first, nor while it waits: the page keeps those that it has.
            keeps = answer.is_fetched and not (answer.run or answer.parts) and answer.state in ("", *_GOES_ON)
            fields = {"is_new": True, "keeps": keeps, "me": self._show_payload(answer.payload), "at": answer.at}
        for ident, part in answer.parts.items():
            before, blocks = sent.get(ident, {}), part.get("blocks")
            if part is not before and blocks is not None:
                sent[ident] = part
                pairs = zip(before.get("blocks", ()), blocks, strict=False)
                start = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
                parts.append({**part, "part": ident, "start": start, "blocks": blocks[start:]})
        if not fields and not parts and sent["state"] == answer.state:
            return []
        sent["state"] = answer.state
        return [place.state("answer", id=answer.id, state=answer.state, parts=parts, **fields)]


async def list_allowed(
    agents: Iterable[DoorAgent], caller: Caller, known: Collection[str] = ()
) -> dict[str, tuple[bool, bool]]:
    """Return the agents (bare JIDs) to which a person has access, with whether each runs, and whether it is paused.

    One that does not run cannot tell who has access: it is there if it is among the `known` ones.
    """
    found = {}
    for agent in sorted(agents, key=lambda agent: agent.jid):
        try:
            if await agent.requests.is_allowed(caller):
                found[agent.jid] = True, await agent.backend.is_paused()
        except ConnectionError:
            if agent.jid in known:
                found[agent.jid] = False, False
    return found


def make_call(agent: DoorAgent, caller: Caller) -> Call:
    """Return a call of a person, for what an agent stores about them."""
    return Call(agent.host, Actor(CallerKind.PERSON, caller.address, agent.jid))


def describe_conversation(each: ConversationTitle, person: str) -> State:
    """Return a conversation as the page lists it."""
    thread = recover_thread(each.conversation_id, person, each.agent) or ""
    return {"agent": each.agent, "thread": thread, "turns": each.turns, "title": each.title}
