"""What an agent answers through in one turn: every call becomes an event, and the event stanzas."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import UUID

from ..codec import Voice
from ..contracts import AgentRequest, AuditEntry, CloudEvent, DataBlock, GraphEventBase, ThinkingBlock, UserErrorBlock
from ..contracts.blocks import STEP
from ..domain.messages import Said, SaidText, StreamStarted, TurnEvent, named, owner_of
from ..domain.text import printable
from ..storage import AgentStore
from .long_answers import AS_IT_IS, Filing
from .mailbox import Waiting
from .outbound import Send, Tracked
from .stream import Pace, Stream

_CHOICES = 20

_Status: TypeAlias = Literal["IN_PROGRESS", "COMPLETE"]
_STATUSES = get_args(_Status)
_ViewHint: TypeAlias = Literal["TABLE", "JSON", "LIST", "KEY_VALUE"]

agent_log = logging.getLogger("spade_coreason.agent")


class Response:
    """The ResponseHandler of one turn. After the turn every call is a `RuntimeError`."""

    def __init__(
        self, voice: Voice, send: Send, waiting: Waiting, store: AgentStore, pace: Pace, filing: Filing | None = None
    ) -> None:
        self.voice = voice
        self.filing = filing if voice.shows_files else None
        self._waiting = waiting
        self._send_now = send
        self._store = store
        self.pace = pace
        self._held: list[str] = []
        if voice.shows_typing:
            pace.typing.set(self._show_typing)
        self._numbered = 0
        self._thoughts = 0
        self.streams: dict[int, Stream] = {}
        self._is_over = False
        self.request: AgentRequest | None = None
        """What is answered; known once the session is loaded."""
        self.stanzas: list[str] = []
        """What the outbox keeps: everything that left or will leave, but thoughts and typing."""
        self.last_sent: Tracked | None = None
        self.texts: list[str] = []
        self.data_blocks: list[dict[str, Any]] = []
        self.reported_error: UserErrorBlock | None = None
        self.events: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """What it said, without data."""
        return "\n\n".join(self.texts)

    # What an agent calls

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        """Emits a thinking block."""
        self._think(content, status)

    async def step(self, content: str) -> None:
        """Emits a thinking block for everybody: a short line that says what is used just now, such as a tool.

        Unlike a thought people read it without asking for it, but in rooms, and unless they want no thoughts.
        """
        self._think(content, "IN_PROGRESS", STEP)

    async def markdown(self, content: str) -> None:
        """Emits a markdown block; `TypeError` for what is no text.

        To a person one too long for a chat is a file, where the server keeps files.
        """
        if not isinstance(content, str):
            raise TypeError(f"an answer is text, not {type(content).__name__}")
        fitting = await self.filing.markdown(content) if self.filing is not None else AS_IT_IS
        self.emit_soon(SaidText(content, self._number(), *fitting))
        self.texts.append(content)

    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Emits a markdown block that asks, and offers answers: as buttons where a client has them (XEP-0439).

        What is chosen, or anything else, comes as the next message. `ValueError` for more than 20 choices, or an empty one.
        """
        if not 0 < len(choices) <= _CHOICES or not all(isinstance(choice, str) and choice.strip() for choice in choices):
            raise ValueError(f"choices are 1 to {_CHOICES} texts, not {choices!r}")
        content = "\n".join([question, "", *(f"- {choice}" for choice in choices)])
        offered = tuple((choice, choice) for choice in choices)
        self.emit_soon(SaidText(content, self._number(), choices=offered))
        self.texts.append(content)

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None:
        """Emits a data block; a value that is no JSON is a `ValueError` or `TypeError`, and nothing is sent."""
        block = DataBlock(id=self.ident(self._number()), data=data, title=title, view_hint=cast(_ViewHint, view_hint))
        dumped = block.dump()
        fitting = await self.filing.data(block) if self.filing is not None else AS_IT_IS
        self.emit_soon(Said(block, *fitting))
        self.data_blocks.append(dumped)

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        """Emits an error that concerns the whole request. Only `message` is shown; `details` stay in the process."""
        ident = self.ident(self._number())
        self.report(UserErrorBlock(id=ident, user_message=message, technical_details=details, recoverable=recoverable))

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Stream:
        """Opens a stream."""
        self._require_open()
        number = self._number()
        stream = Stream(self, number)
        if self.voice.follows_streams:
            self.emit_now(StreamStarted(stream.stream_id, title))
        self.streams[number] = stream
        return stream

    async def emit(self, event: CloudEvent[Any] | GraphEventBase) -> None:
        """Records an internal event in the Interaction."""
        self._record(event.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Writes to the log `spade_coreason.agent`, and records the line as a CloudEvent."""
        number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        agent_log.log(number, "%s: %s", self._store.agent, message)
        data = {"level": level, "message": message, "metadata": metadata or {}}
        await self.emit(CloudEvent(type="ai.coreason.log", source=f"xmpp:{self._store.agent}", data=data))

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None:
        """Puts an entry into the audit trail of the agent, where it is durable when this returns, and into the Interaction.

        `StoreError` where that cannot be.
        """
        self._require_open()
        request = self.request
        entry = AuditEntry(
            request_id=request.request_id if request else None,
            root_request_id=request.root_request_id if request else None,
            actor=printable(actor),
            action=printable(action),
            resource=printable(resource),
            outcome="success" if success else "failure",
        )
        sealed = await self._store.trail.append(entry, owner_of(self._waiting.incoming))
        await self.emit(CloudEvent(type="ai.coreason.audit", source=f"xmpp:{self._store.agent}", data=sealed.dump()))

    # What its streams call

    def ident(self, number: int) -> UUID:
        """The id of the block or the stream with this number."""
        return named(self._waiting.key, number)

    def emit_now(self, event: TurnEvent) -> None:
        """Says what cannot wait: it leaves at once, behind all that was said before."""
        if stanzas := self._say(event):
            self.send(self._take_held() + stanzas)

    def emit_soon(self, event: TurnEvent) -> None:
        """Says what may wait: it leaves with the next event, with the end of the turn, or in a tenth of a second."""
        if stanzas := self._say(event):
            held, self._held = self._take_held(), stanzas
            self.pace.holding.set(self._release)
            if held:
                self.send(held)

    def show_growth(self, stream_id: str) -> bool:
        """Shows what a stream has more than before, behind all that was said before; whether there was something."""
        grown = self.voice.growth(stream_id)
        if grown:
            self.send(self._take_held())
            self._send_now(grown)
        return bool(grown)

    # What the runner calls

    def report(self, block: UserErrorBlock) -> None:
        """Says an error, without its technical details."""
        self.emit_soon(Said(block.model_copy(update={"technical_details": None})))
        self.reported_error = block

    async def close_streams(self) -> None:
        """Ends what is still open."""
        for stream in list(self.streams.values()):
            await stream.close()
            stream.end()  # where a task that nobody waits for is about to close it

    def abort_streams(self, reason: str) -> None:
        """Ends what is still open, before its time."""
        for stream in list(self.streams.values()):
            stream.cut_off(reason)

    def hold(self) -> None:
        """The agent is done: a block that waits leaves when the turn is stored, however long that takes."""
        self.pace.holding.take_back(self._release)

    def conclude(self, event: TurnEvent) -> list[str]:
        """Ends the turn with its last event. What it gives leaves when the turn is stored."""
        self._end()
        final = self.voice.say(event)
        self.stanzas += final
        held = self._take_held()
        return held + final

    def withdraw(self) -> None:
        """Ends the turn: nobody wants its answer any more."""
        self.abandon()
        self._send_now(self.voice.withdrawn())

    def abandon(self) -> None:
        """Ends the turn without a word: it runs again."""
        self._end()
        self._take_held()
        if (stanza := self.voice.paused()) is not None:
            self._send_now([stanza])

    def send(self, stanzas: list[str]) -> None:
        """Sends, and remembers the last so that its acknowledgement can be waited for."""
        if stanzas:
            self.last_sent = Tracked(stanzas[-1])
            self._send_now([*stanzas[:-1], self.last_sent])
            if self.voice.shows_typing and not self._is_over:
                self._type_on()

    def _think(self, content: str, status: str, title: str | None = None) -> None:
        self._require_open()
        if not isinstance(content, str):
            raise TypeError(f"a thought is text, not {type(content).__name__}")
        if status not in _STATUSES:
            raise ValueError(f"the status of a thought is {' or '.join(_STATUSES)}, not {status!r}")
        if not self.voice.reads_thoughts(title):
            return
        self._thoughts += 1
        block = ThinkingBlock(
            id=self.ident(self._thoughts << 64),
            title=title,
            content=content,
            status=cast(_Status, status),
        )
        if stanzas := self.voice.say(Said(block)):  # no part of the answer, so nothing keeps it
            self.send(self._take_held() + stanzas)

    def _number(self) -> int:
        """That of the next block or stream."""
        self._numbered += 1
        return self._numbered

    def _say(self, event: TurnEvent) -> list[str]:
        """Says what is a part of the answer; gives its stanzas, which are still to be sent."""
        self._require_open()
        stanzas = self.voice.say(event)
        self.stanzas += stanzas
        return stanzas

    def _take_held(self) -> list[str]:
        held, self._held = self._held, []
        if held:
            self.pace.holding.take_back(self._release)
        return held

    def _release(self) -> None:
        self.send(self._take_held())

    def _end(self) -> None:
        self._is_over = True
        pace = self.pace
        if self.voice.shows_typing:
            pace.typing.take_back(self._show_typing)
            pace.still_typing.take_back(self._show_typing)
        for stream in self.streams.values():
            stream.stop_growing()
        self.streams.clear()

    def _show_typing(self) -> None:
        if (stanza := self.voice.composing()) is not None:
            self._send_now([stanza])
            self.pace.still_typing.set(self._show_typing)

    def _type_on(self) -> None:
        """After something was said: typing is shown again, if the work goes on."""
        self.pace.typing.take_back(self._show_typing)
        self.pace.still_typing.take_back(self._show_typing)
        self.pace.typing.set(self._show_typing)

    def _require_open(self) -> None:
        if self._is_over:
            raise RuntimeError("nothing may be emitted after assist has returned")

    def _record(self, event: dict[str, Any]) -> None:
        self._require_open()
        self.events.append(event)
