"""What comes of commands: no turns. Nothing of them is counted, and nothing is in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from pydantic_core import to_json

from ...codec import voice_for
from ...domain import conversation
from ...domain.identifiers import thread_of
from ...domain.messages import Completed, Incoming, SaidText
from ...domain.preferences import USUAL
from ...memory import Forgotten, Memory, forget_conversation, forget_person
from ..admission import WaitingRoom
from ..context import Engine
from ..loader import Memories
from ..mailbox import Errand, Lane, Waiting
from ..outbound import Send
from ..response import Response
from ..turn import Turn
from .decorator import OwnCommand
from .formatting import deleted
from .model import Command, House, Outcome
from .parser import Read
from .registry import Commands


class Obeying:
    """Does what people tell one agent's `house` by its commands; `set_to_work` is told of a lane in which something waits."""

    def __init__(
        self,
        engine: Engine,
        memories: Memories,
        commands: Commands,
        house: House,
        waiting_room: WaitingRoom,
        set_to_work: Callable[[Lane], None],
    ) -> None:
        self._engine = engine
        self._memories = memories
        self._commands = commands
        self._house = house
        self._waiting_room = waiting_room
        self._set_to_work = set_to_work

    def find(self, incoming: Incoming) -> Command | None:
        """The command that a request is, if it is one."""
        return self._commands.find(str(incoming.payload.get("query", ""))) if incoming.may_command else None

    def is_work(self, one: Waiting | Errand) -> bool:
        """Whether something is for the agent: a request, or a command of its own."""
        if isinstance(one, Errand):
            return one.is_work
        command = self.find(one.incoming)
        return command is None or command.name in self._commands.own

    def cancel_at_once(self, lane: Lane, incoming: Incoming, is_new: asyncio.Future[bool], is_surely_new: bool) -> None:
        """Stops what runs in a lane where a request for it says `/cancel`; its answer waits for its turn.

        One that comes again does not mean what runs by then.
        """
        if (command := self.find(incoming)) is None or command.name != "cancel":
            return
        if is_surely_new:
            lane.has_cancelled = lane.stop()
        else:
            is_new.add_done_callback(partial(_cancel_if_new, lane))

    # Outside of a conversation

    async def obey(self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None) -> Outcome:
        """What comes of a command of somebody (a bare JID) who says it in no conversation; see `Runner.obey`."""
        store = self._engine.store
        theirs = await store.conversations(owner=owner, limit=1)
        if conversation_id is not None:
            found = await store.find_conversations([conversation_id])
            theirs = [row for row in found.values() if row.owner == owner] or theirs
        row = self._memories.row_now(theirs[0]) if theirs else None
        if command.at_once or not self._commands.may(owner, command):
            return await self._commands.do(command, values, self._house, owner, row)
        thread = thread_of(row.conversation_id, owner, self._engine.jid) if row is not None else None
        is_work = command.name in self._commands.own
        if is_work and self._waiting_room.is_full(owner, thread):
            return Outcome("Too much of yours waits already; please try again later.", is_error=True)
        lane = self._engine.lanes.take(owner, thread)
        before = max((waiting.row for waiting in lane.queue if isinstance(waiting, Waiting)), default=0)
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        work = partial(self._run_errand, lane, command, values, before)
        lane.put(Errand(work, is_work, done))
        self._set_to_work(lane)
        return await done

    def say(self, owner: str, outcome: Outcome) -> None:
        """Says to a person, outside of any turn, what came of a command."""
        self._engine.outbox.send(self._in_words(Incoming("person", owner, "", None, {}, ""), uuid4(), outcome))

    async def _run_errand(self, lane: Lane, command: Command, values: Mapping[str, Any], before: int) -> Outcome:
        """Does what was asked outside of the conversation. What was said there until then, and waits, is older."""
        memory = lane.memory or await self._memories.load(lane)
        own = self._commands.own.get(command.name)
        if own is not None:
            asked = Incoming("person", lane.sender, "", lane.key[1], {"query": command.text}, "")
            is_new: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            is_new.set_result(True)
            waiting = Waiting(asked, uuid4(), 0, is_new, self._engine.activity.now())
            turn = self._turn(lane, memory, waiting, lambda stanzas: None)
            return await self._run_own(turn, own, values, is_heard=False)
        outcome = await self._commands.do(command, values, self._house, lane.sender, memory.row)
        outcome = await self._carry_out(lane, memory, outcome, before + 1)
        if lane.memory is not None:
            await self._engine.store.save_conversation(memory.row)
        return outcome

    # In a conversation, instead of a turn

    async def answer(self, lane: Lane, memory: Memory, waiting: Waiting, said: Read | str) -> None:
        """Answers a command that somebody wrote; a text is one that there is not. `StoreError` if that cannot be stored."""
        store = self._engine.store
        own = self._commands.own.get(said.command.name) if isinstance(said, Read) else None
        if isinstance(said, Read) and own is not None and said.values is not None:
            turn = self._turn(lane, memory, waiting, self._engine.outbox.send)
            await self._run_own(turn, own, said.values, is_heard=True)
            return
        if isinstance(said, str):
            near = self._commands.nearest(said, lane.sender)
            meant = f" Did you mean {near}?" if near is not None else ""
            outcome = Outcome(f"There is no such command.{meant} /help shows what there is.", is_error=True)
        elif said.command.who == "operators" and waiting.incoming.owner:  # who it is, only a room says
            outcome = Outcome(f"{said.command.text} is for those who write to me directly.", is_error=True)
        elif said.command.name == "cancel":
            outcome = Outcome("Stopped." if lane.has_cancelled else "There is nothing to stop.")
            lane.has_cancelled = False
        else:
            outcome = await self._commands.do_read(said, self._house, lane.sender, memory.row)
            outcome = await self._carry_out(lane, memory, outcome, waiting.row)
        stanzas = self._in_words(waiting.incoming, waiting.key, outcome, memory.row.conversation_id)
        answer = to_json(stanzas).decode()
        if lane.memory is None:  # it was forgotten, and must not be there again
            await store.inbox.answer(waiting.row, answer)
        else:
            await store.inbox.finish(waiting.row, memory.row, None, answer)
        await waiting.is_new
        self._engine.outbox.send_final(waiting.row, stanzas)

    def _in_words(self, incoming: Incoming, key: UUID, outcome: Outcome, conversation_id: str = "") -> list[str]:
        text = "\n".join(part for part in (outcome.text, outcome.link) if part)
        return self._engine.outbox.words(
            incoming,
            key,
            SaidText(text, 1, choices=outcome.choices),
            *(SaidText(part, number) for number, part in enumerate(outcome.further, 2)),
            Completed(conversation_id, "active"),  # which a program waits for
        )

    # The agent's own

    def _turn(self, lane: Lane, memory: Memory, waiting: Waiting, send: Send) -> Turn:
        engine = self._engine
        voice = voice_for(waiting.incoming, waiting.key, engine.jid, engine.policy.stanza_bytes)
        response = Response(voice, send, waiting, engine.store, engine.pace)
        return Turn(engine, lane, memory, waiting, response, engine.clock())

    async def _run_own(self, turn: Turn, own: OwnCommand, values: Mapping[str, Any], *, is_heard: bool) -> Outcome:
        """Runs a command of the agent's as a turn is run. What nobody has heard from there is the outcome."""
        store, memory, response, session = self._engine.store, turn.memory, turn.response, turn.session

        async def work() -> None:
            said = await own.run(session, **{field.name: values[field.name] for field in own.fields})
            await response.markdown("Done." if said is None else str(said))

        turn.lane.current = turn.waiting
        last = await turn.run(work)
        if turn.is_forgotten:
            if is_heard:
                response.withdraw()
                store.inbox.close(turn.waiting.row)
            return Outcome("This is not done: what it was about is gone.", is_error=True)
        if last is None:
            if is_heard:
                await store.inbox.finish(turn.waiting.row, memory.row, None, None)
            return Outcome("Stopped.")
        final = response.conclude(last)
        if session.is_ended:
            await self._carry_out(turn.lane, memory, Outcome("", "new"), 0)
        if is_heard:
            await turn.store_answer(final, None)
            await turn.waiting.is_new  # as after a turn
        else:
            written = session.close()
            await store.save_conversation(memory.row)
            await asyncio.gather(*(store.save_variable(*variable) for variable in written))
        session.settle()
        self._engine.activity.answered(turn.waiting.arrived)
        failed = response.reported_error
        return Outcome("\n\n".join(response.texts) if failed is None else failed.user_message, is_error=failed is not None)

    # What a command does to a conversation

    async def _carry_out(self, lane: Lane, memory: Memory, outcome: Outcome, before: int) -> Outcome:
        """Does to a conversation what a command comes to; requests before that row are older than it."""
        if outcome.kind == "new":
            was_active = memory.life.is_active
            memory.life = conversation.renew(memory.life)
            memory.echoes = 0
            if was_active:
                await self._engine.ends.ended(memory.row.conversation_id, memory.life.state)
        elif outcome.kind != "answer":
            self._drop_older(lane, before)
            report = await self._forget(lane, memory, everything=outcome.kind == "forget me")
            return replace(outcome, text=deleted(report))
        return outcome

    def _drop_older(self, lane: Lane, before: int) -> None:
        """What was said before, and kept back by a pause."""
        for waiting in list(lane.queue):
            if isinstance(waiting, Errand):
                waiting.done.cancel()
            elif waiting.row < before:
                self._engine.store.inbox.close(waiting.row)
            else:
                continue
            lane.remove(waiting)

    async def _forget(self, lane: Lane, memory: Memory, *, everything: bool) -> Forgotten:
        """Deletes a conversation, or all that is known of its owner; what runs or waits for them is dropped before."""
        engine, owner = self._engine, lane.sender
        gone = engine.lanes.of(owner) if everything else [lane]
        others = [other for other in gone if other is not lane]
        for other in others:
            other.clear()
            other.stop()
        workers = [other.worker for other in others if other.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=engine.policy.timings.stop_s)
        await engine.governance.let_go(owner)
        if everything:
            report = await forget_person(engine.store, self._house.memory, owner)
            memory.person.variables.values.clear()
            memory.person.preferences = USUAL
        else:
            report = await forget_conversation(engine.store, self._house.memory, memory.row)
            left = await engine.store.variables("person", owner)
            theirs = memory.person.variables.values
            for name, text in memory.variables.values.items():
                if name not in left and theirs.get(name) == text:
                    del theirs[name]
        if engine.knowledge is not None:
            engine.knowledge.let_go()
        for one in gone:
            if one.conversation_id is not None:
                engine.ends.gone(one.conversation_id)
            one.memory = None
            engine.lanes.let_go(one)
        return report


def _cancel_if_new(lane: Lane, is_new: asyncio.Future[bool]) -> None:
    if not is_new.cancelled() and is_new.exception() is None and is_new.result():
        lane.has_cancelled = lane.stop()
