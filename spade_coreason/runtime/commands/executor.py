"""What comes of commands: no turns. Nothing of them is counted, and nothing is in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from pydantic_core import to_json

from ...codec import encoder_for
from ...domain import conversation
from ...domain.identifiers import recover_thread
from ...domain.messages import Completed, InboundRequest, TextEmitted
from ...domain.preferences import DEFAULTS
from ...memory import ActiveConversation, ErasureReport, forget_conversation, forget_person
from ..admission import AdmissionControl
from ..context import TurnServices
from ..loader import ConversationLoader
from ..mailbox import Mailbox, MailboxTask, QueuedRequest
from ..outbound import SendStanzas
from ..response import Response
from ..turn import Turn
from .decorator import AgentCommand
from .formatting import describe_deleted
from .model import Command, CommandContext, CommandResult
from .parser import ParsedCommand
from .registry import Commands


class CommandExecutor:
    """Does what people tell one agent's `context` by its commands; `schedule` is told of a lane in which something waits."""

    def __init__(
        self,
        services: TurnServices,
        loader: ConversationLoader,
        commands: Commands,
        context: CommandContext,
        admission: AdmissionControl,
        schedule: Callable[[Mailbox], None],
    ) -> None:
        self._services = services
        self._loader = loader
        self._commands = commands
        self._context = context
        self._admission = admission
        self._schedule = schedule

    def find_command(self, incoming: InboundRequest) -> Command | None:
        """The command that a request is, if it is one."""
        return self._commands.find(str(incoming.payload.get("query", ""))) if incoming.may_be_command else None

    def is_for_agent(self, item: QueuedRequest | MailboxTask) -> bool:
        """Whether something is for the agent: a request, or a command of its own."""
        if isinstance(item, MailboxTask):
            return item.is_for_agent
        command = self.find_command(item.incoming)
        return command is None or command.name in self._commands.agent_commands

    def cancel_if_requested(
        self, mailbox: Mailbox, incoming: InboundRequest, stored: asyncio.Future[bool], may_start_early: bool
    ) -> None:
        """Stops what runs in a lane where a request for it says `/cancel`; its answer waits for its turn.

        One that comes again does not mean what runs by then.
        """
        if (command := self.find_command(incoming)) is None or command.name != "cancel":
            return
        if may_start_early:
            mailbox.has_cancelled = mailbox.cancel_current()
        else:
            stored.add_done_callback(partial(_cancel_if_new, mailbox))

    # Outside of a conversation

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None
    ) -> CommandResult:
        """What comes of a command of somebody (a bare JID) who says it in no conversation; see `Runner.run_command`."""
        store = self._services.store
        theirs = await store.list_conversations(owner=owner, limit=1)
        if conversation_id is not None:
            found = await store.find_conversations([conversation_id])
            theirs = [row for row in found.values() if row.owner == owner] or theirs
        row = self._loader.current_record(theirs[0]) if theirs else None
        if command.is_immediate or not self._commands.may_run(owner, command):
            return await self._commands.run(command, values, self._context, owner, row)
        thread = recover_thread(row.conversation_id, owner, self._services.jid) if row is not None else None
        is_work = command.name in self._commands.agent_commands
        if is_work and self._admission.is_full(owner, thread):
            return CommandResult("Too much of yours waits already; please try again later.", is_error=True)
        lane = self._services.mailboxes.get_or_create(owner, thread)
        before = max((waiting.inbox_row for waiting in lane.queue if isinstance(waiting, QueuedRequest)), default=0)
        done: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        work = partial(self._run_task, lane, command, values, before)
        lane.enqueue(MailboxTask(work, is_work, done))
        self._schedule(lane)
        return await done

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Says to a person, outside of any turn, what came of a command."""
        self._services.outbox.send(self._encode_result(InboundRequest("person", owner, "", None, {}, ""), uuid4(), result))

    async def _run_task(self, mailbox: Mailbox, command: Command, values: Mapping[str, Any], before_row: int) -> CommandResult:
        """Does what was asked outside of the conversation. What was said there until then, and waits, is older."""
        memory = mailbox.conversation or await self._loader.load(mailbox)
        own = self._commands.agent_commands.get(command.name)
        if own is not None:
            asked = InboundRequest("person", mailbox.sender, "", mailbox.key[1], {"query": command.text}, "")
            is_new: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            is_new.set_result(True)
            waiting = QueuedRequest(asked, uuid4(), 0, is_new, self._services.metrics.now())
            turn = self._make_turn(mailbox, memory, waiting, lambda stanzas: None)
            return await self._run_agent_command(turn, own, values, sends_reply=False)
        outcome = await self._commands.run(command, values, self._context, mailbox.sender, memory.record)
        outcome = await self._apply_result(mailbox, memory, outcome, before_row + 1)
        if mailbox.conversation is not None:
            await self._services.store.save_conversation(memory.record)
        return outcome

    # In a conversation, instead of a turn

    async def reply_to_command(
        self, mailbox: Mailbox, active: ActiveConversation, queued: QueuedRequest, parsed: ParsedCommand | str
    ) -> None:
        """Answers a command that somebody wrote; a text is one that there is not. `StoreError` if that cannot be stored."""
        store = self._services.store
        own = self._commands.agent_commands.get(parsed.command.name) if isinstance(parsed, ParsedCommand) else None
        if isinstance(parsed, ParsedCommand) and own is not None and parsed.values is not None:
            turn = self._make_turn(mailbox, active, queued, self._services.outbox.send)
            await self._run_agent_command(turn, own, parsed.values, sends_reply=True)
            return
        if isinstance(parsed, str):
            near = self._commands.suggest(parsed, mailbox.sender)
            meant = f" Did you mean {near}?" if near is not None else ""
            outcome = CommandResult(f"There is no such command.{meant} /help shows what there is.", is_error=True)
        elif parsed.command.audience == "operators" and queued.incoming.owner:  # who it is, only a room says
            outcome = CommandResult(f"{parsed.command.text} is for those who write to me directly.", is_error=True)
        elif parsed.command.name == "cancel":
            outcome = CommandResult("Stopped." if mailbox.has_cancelled else "There is nothing to stop.")
            mailbox.has_cancelled = False
        else:
            outcome = await self._commands.run_parsed(parsed, self._context, mailbox.sender, active.record)
            outcome = await self._apply_result(mailbox, active, outcome, queued.inbox_row)
        stanzas = self._encode_result(queued.incoming, queued.key, outcome, active.record.conversation_id)
        answer = to_json(stanzas).decode()
        if mailbox.conversation is None:  # it was forgotten, and must not be there again
            await store.inbox.store_answer(queued.inbox_row, answer)
        else:
            await store.inbox.finish(queued.inbox_row, active.record, None, answer)
        await queued.stored
        self._services.outbox.send_final(queued.inbox_row, stanzas)

    def _encode_result(
        self, incoming: InboundRequest, key: UUID, result: CommandResult, conversation_id: str = ""
    ) -> list[str]:
        text = "\n".join(part for part in (result.text, result.link) if part)
        return self._services.outbox.encode(
            incoming,
            key,
            TextEmitted(text, 1, choices=result.choices),
            *(TextEmitted(part, number) for number, part in enumerate(result.extra_texts, 2)),
            Completed(conversation_id, "active"),  # which a program waits for
        )

    # The agent's own

    def _make_turn(self, mailbox: Mailbox, active: ActiveConversation, queued: QueuedRequest, send: SendStanzas) -> Turn:
        engine = self._services
        voice = encoder_for(queued.incoming, queued.key, engine.jid, engine.policy.stanza_bytes)
        response = Response(voice, send, queued, engine.store, engine.reply_timers)
        return Turn(engine, mailbox, active, queued, response, engine.clock())

    async def _run_agent_command(
        self, turn: Turn, agent_command: AgentCommand, values: Mapping[str, Any], *, sends_reply: bool
    ) -> CommandResult:
        """Runs a command of the agent's as a turn is run. What nobody has heard from there is the outcome."""
        store, memory, response, session = self._services.store, turn.conversation, turn.response, turn.session

        async def work() -> None:
            said = await agent_command.run(session, **{field.name: values[field.name] for field in agent_command.fields})
            await response.markdown("Done." if said is None else str(said))

        turn.mailbox.current = turn.queued
        last = await turn.run(work)
        if turn.is_deleted:
            if sends_reply:
                response.cancel()
                store.inbox.close(turn.queued.inbox_row)
            return CommandResult("This is not done: what it was about is gone.", is_error=True)
        if last is None:
            if sends_reply:
                await store.inbox.finish(turn.queued.inbox_row, memory.record, None, None)
            return CommandResult("Stopped.")
        final = response.finish(last)
        if session.is_ended:
            await self._apply_result(turn.mailbox, memory, CommandResult("", "new"), 0)
        if sends_reply:
            await turn.store_reply(final, None)
            await turn.queued.stored  # as after a turn
        else:
            written = session.close()
            await store.save_conversation(memory.record)
            await asyncio.gather(*(store.save_variable(*variable) for variable in written))
        session.publish_variables()
        self._services.metrics.record_reply(turn.queued.received_at_s)
        failed = response.reported_error
        return CommandResult(
            "\n\n".join(response.texts) if failed is None else failed.user_message, is_error=failed is not None
        )

    # What a command does to a conversation

    async def _apply_result(
        self, mailbox: Mailbox, active: ActiveConversation, result: CommandResult, before_row: int
    ) -> CommandResult:
        """Does to a conversation what a command comes to; requests before that row are older than it."""
        if result.kind == "new":
            was_active = active.status.is_active
            active.status = conversation.allow_new_episode(active.status)
            active.echo_count = 0
            if was_active:
                await self._services.expiry.on_ended(active.record.conversation_id, active.status.state)
        elif result.kind != "answer":
            self._drop_older(mailbox, before_row)
            report = await self._delete(mailbox, active, everything=result.kind == "forget me")
            return replace(result, text=describe_deleted(report))
        return result

    def _drop_older(self, mailbox: Mailbox, before_row: int) -> None:
        """What was said before, and kept back by a pause."""
        for waiting in list(mailbox.queue):
            if isinstance(waiting, MailboxTask):
                waiting.future.cancel()
            elif waiting.inbox_row < before_row:
                self._services.store.inbox.close(waiting.inbox_row)
            else:
                continue
            mailbox.remove(waiting)

    async def _delete(self, mailbox: Mailbox, active: ActiveConversation, *, everything: bool) -> ErasureReport:
        """Deletes a conversation, or all that is known of its owner; what runs or waits for them is dropped before."""
        engine, owner = self._services, mailbox.sender
        gone = engine.mailboxes.of_sender(owner) if everything else [mailbox]
        others = [other for other in gone if other is not mailbox]
        for other in others:
            other.clear()
            other.cancel_current()
        workers = [other.worker for other in others if other.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=engine.policy.timings.stop_s)
        await engine.history_window.cancel_for_owner(owner)
        if everything:
            report = await forget_person(engine.store, self._context.interaction_memory, owner)
            active.person.variables.values.clear()
            active.person.preferences = DEFAULTS
        else:
            report = await forget_conversation(engine.store, self._context.interaction_memory, active.record)
            left = await engine.store.load_variables("person", owner)
            theirs = active.person.variables.values
            for name, text in active.variables.values.items():
                if name not in left and theirs.get(name) == text:
                    del theirs[name]
        if engine.knowledge is not None:
            engine.knowledge.clear_cache()
        for one in gone:
            if one.conversation_id is not None:
                engine.expiry.on_deleted(one.conversation_id)
            one.conversation = None
            engine.mailboxes.evict_if_idle(one)
        return report


def _cancel_if_new(mailbox: Mailbox, stored: asyncio.Future[bool]) -> None:
    if not stored.cancelled() and stored.exception() is None and stored.result():
        mailbox.has_cancelled = mailbox.cancel_current()
