"""Execution of commands. A command is no turn: it is neither counted nor stored in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ...domain import conversation
from ...domain.channel_kinds import PERSON
from ...domain.identifiers import recover_thread
from ...domain.messages import Completed, Failed, InboundRequest, TextEmitted
from ...domain.texts.translation import LANGUAGE, translate
from ...exceptions import ConfigError
from ...memory import ActiveConversation
from ...operations.people import OfWholePerson, delete_person, describe_deletion
from ...operations.sessions import ClearSessions, clear_sessions, describe_deleted
from ...storage import Commit
from ..channels import OutboundMessage, SendMessages
from ..intake.admission import Admission
from ..intake.conversation_loader import ConversationLoader
from ..intake.mailbox import ERASING_MAILBOX, Mailbox, MailboxTask, QueuedRequest
from ..intake.mailboxes import Mailboxes
from ..turns.output import TurnOutput, dump_reply
from ..turns.turn import Turn
from ..turns.turn_services import TurnServices
from ..upkeep.metrics import Outcome
from .context import CommandContext
from .decorator import AgentCommand
from .model import Command, CommandResult
from .parser import ParsedCommand
from .registry import Commands


class CommandExecutor:
    """Executor of one agent's commands."""

    def __init__(
        self,
        services: TurnServices,
        loader: ConversationLoader,
        commands: Commands,
        context: CommandContext,
        admission: Admission,
    ) -> None:
        self._services = services
        self._loader = loader
        self.commands = commands
        self.context = context
        self._admission = admission

    def cancel_if_requested(self, queued: QueuedRequest, sender: str) -> None:
        """Stop the running turn of a conversation if a request there is `/cancel`. The reply to it waits for its turn.

        A `/cancel` that is delivered again does not stop the turn that runs by then. `sender` is a bare JID.
        """
        if not isinstance(queued.command, ParsedCommand) or queued.command.command.name != "cancel":
            return
        mailboxes = self._services.mailboxes
        mailbox = mailboxes.get(sender, queued.incoming.thread)
        if mailbox is None:
            return
        # A callback would stop this request itself, which runs by then.
        if mailbox.worker is None and mailboxes.archive_hold.find(mailbox) is None:
            mailbox.has_cancelled_turn = False
        elif queued.may_start_early:
            _cancel_if_new(mailboxes, mailbox, True)
        else:
            queued.stored.on_stored(partial(_cancel_if_new, mailboxes, mailbox))

    # Outside of a conversation

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None
    ) -> CommandResult:
        """Run a command that a person (a bare JID) sends outside of a conversation; see `Runner.run_command`."""
        repository = self._services.repository
        records = await repository.list_conversations(owner=owner, limit=1)
        if conversation_id is not None:
            found = await repository.find_conversations([conversation_id])
            records = [record for record in found.values() if record.owner == owner] or records
        record = self._loader.current_record(records[0]) if records else None
        if command.is_immediate or not self.commands.may_run(owner, command):
            return await self.commands.run(command, values, self.context, owner, record)
        thread = recover_thread(record.conversation_id, owner, self._services.jid) if record is not None else None
        is_for_agent = command.name in self.commands.agent_commands
        if is_for_agent:
            incoming = InboundRequest(PERSON, owner, "", thread, {"query": command.text, **values}, "", owner=owner)
            refusal = self._admission.refuse(incoming, is_for_agent=True)
            if refusal is not None:
                if refusal.incident is not None:
                    await refusal.incident.wait()
                return CommandResult(refusal.problem.message, is_error=True)
        mailbox = self._services.mailboxes.get_or_create(owner, thread)
        before_row = max((item.inbox_row for item in mailbox.queue if isinstance(item, QueuedRequest)), default=0)
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        work = partial(self._run_task, mailbox, command, values, before_row, LANGUAGE.get())
        self._services.mailboxes.put_task(mailbox, MailboxTask(work, is_for_agent, future))
        return await future

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Send the result of a command to a person, outside of any turn."""
        incoming = InboundRequest(PERSON, owner, "", None, {}, "", owner=owner)
        self._services.outbox.channel_of(incoming).send(self._encode_result(incoming, uuid4(), result))

    async def _run_task(
        self, mailbox: Mailbox, command: Command, values: Mapping[str, Any], before_row: int, language: str | None
    ) -> CommandResult:
        """Run a command from outside of the conversation. Requests up to `before_row` that still wait are older."""
        LANGUAGE.set(language)
        active = mailbox.active or await self._loader.load(mailbox)
        agent_command = self.commands.agent_commands.get(command.name)
        if agent_command is not None:
            incoming = InboundRequest(
                PERSON, mailbox.sender, "", mailbox.key[1], {"query": command.text}, "", owner=mailbox.sender
            )
            queued = QueuedRequest(incoming, uuid4(), 0, Commit.completed(True), time.monotonic())
            turn = self._make_turn(mailbox, active, queued, lambda messages: None)
            return await self._run_agent_command(turn, agent_command, values, sends_reply=False)
        result = await self.commands.run(command, values, self.context, mailbox.sender, active.record)
        result = await self._apply_result(mailbox, active, result, before_row + 1)
        if mailbox.active is not None:
            await self._services.repository.save_conversation(active.record)
        return result

    # In a conversation, instead of a turn

    async def reply_to_command(
        self, mailbox: Mailbox, active: ActiveConversation, queued: QueuedRequest, parsed: ParsedCommand | str
    ) -> None:
        """Reply to a command in a message; a `parsed` text is an unknown command. StoreError if the reply is not stored."""
        repository = self._services.repository
        agent_command = self.commands.agent_commands.get(parsed.command.name) if isinstance(parsed, ParsedCommand) else None
        may_run = isinstance(parsed, ParsedCommand) and self.commands.may_run(mailbox.sender, parsed.command)
        if isinstance(parsed, ParsedCommand) and agent_command is not None and parsed.values is not None and may_run:
            turn = self._make_turn(mailbox, active, queued)
            await self._run_agent_command(turn, agent_command, parsed.values, sends_reply=True)
            return
        if isinstance(parsed, str):
            suggestion = self.commands.suggest(parsed, mailbox.sender)
            problem = (
                translate("There is no such command. Did you mean {command}? /help lists the commands.", command=suggestion)
                if suggestion is not None
                else translate("There is no such command. /help lists the commands.")
            )
            result = CommandResult(problem, is_error=True)
        elif parsed.command.needs_own_account and queued.incoming.is_from_room:  # only a room says who this person is
            problem = translate("{command} works only in a message to my own address.", command=parsed.command.text)
            result = CommandResult(problem, is_error=True)
        elif parsed.command.name == "cancel":
            has_stopped = await self._services.questions.end_in_thread(*mailbox.key) or mailbox.has_cancelled_turn
            result = CommandResult(translate("Stopped.") if has_stopped else translate("There is nothing to stop."))
            mailbox.has_cancelled_turn = False
        else:
            kind = queued.incoming.kind
            is_from_program = kind.is_program and not kind.is_page
            result = await self.commands.run_parsed(
                parsed, self.context, mailbox.sender, active.record, is_from_program=is_from_program
            )
            result = await self._apply_result(mailbox, active, result, queued.inbox_row)
        messages = self._encode_result(queued.incoming, queued.key, result, active.record.conversation_id)
        reply = dump_reply(messages) if messages else None  # what was asked for follows by itself
        if mailbox.active is not None:  # else it was deleted, and must not be created again
            await repository.inbox.finish(queued.inbox_row, active.record, None, reply, is_command=True)
        elif result.kind == "forget this" and reply is not None:
            await repository.inbox.store_reply(queued.inbox_row, reply, is_command=True)
        # The reply names a person who is deleted. It is not stored: a crash loses it, and not the deletion.
        await queued.stored
        self._services.metrics.outcomes["command"] += 1
        if messages:
            self._services.outbox.send_final(queued.incoming.channel_name, queued.inbox_row, messages)

    def _encode_result(
        self, incoming: InboundRequest, key: UUID, result: CommandResult, conversation_id: str = ""
    ) -> list[OutboundMessage]:
        text = "\n".join(part for part in (result.text, result.link) if part)
        return self._services.outbox.encode(
            incoming,
            key,
            TextEmitted(text, 1, choices=result.choices),
            *(TextEmitted(part, number) for number, part in enumerate(result.extra_texts, 2)),
            Completed(conversation_id, "active"),  # programs wait for it
        )

    # The agent's own commands

    def _make_turn(
        self, mailbox: Mailbox, active: ActiveConversation, queued: QueuedRequest, send: SendMessages | None = None
    ) -> Turn:
        """Make the turn of an agent's command. `send` is by default that of the channel of its request."""
        services = self._services
        channel = services.outbox.channel_of(queued.incoming)
        encoder = channel.make_encoder(queued.incoming, queued.key)
        output = TurnOutput(encoder, send or channel.send, queued.key, services.reply_timers)
        return Turn(services, mailbox, active, queued, output, services.clock(), active.person)

    async def _run_agent_command(
        self, turn: Turn, agent_command: AgentCommand, values: Mapping[str, Any], *, sends_reply: bool
    ) -> CommandResult:
        """Run a command of the agent like a turn. Return its texts, for a caller that did not send them."""
        repository, active, output = self._services.repository, turn.conversation, turn.output

        async def work() -> None:
            text = await agent_command.run(turn.session, **{field.name: values[field.name] for field in agent_command.fields})
            await turn.response.markdown(translate("Done.") if text is None else str(text))

        turn.mailbox.handled = turn.mailbox.current = turn.queued
        last_event = await turn.run(work)
        if turn.is_deleted:
            if sends_reply:
                output.cancel()
                repository.inbox.close(turn.queued.inbox_row)
            return CommandResult(translate("I did not do this, because the conversation was deleted."), is_error=True)
        if last_event is None:
            self._services.metrics.outcomes["cancelled"] += 1
            if sends_reply:
                await repository.inbox.finish(turn.queued.inbox_row, active.record, None, None)
            return CommandResult(translate("Stopped."))
        final = output.finish(last_event)
        if turn.changes.is_ended:
            await self._apply_result(turn.mailbox, active, CommandResult("", "new"), 0)
        if sends_reply:
            await turn.store(final, None)
            await turn.queued.stored  # as after a turn
        else:
            variables = turn.changes.close()
            await repository.save_conversation(active.record)
            await asyncio.gather(*(repository.save_variable(*variable) for variable in variables))
        turn.changes.publish()
        outcome: Outcome = "failed" if isinstance(last_event, Failed) else "command"
        self._services.metrics.record_reply(turn.queued.received_at_s, outcome, turn.started_at_s)
        error = output.reported_error
        return CommandResult("\n\n".join(output.texts) if error is None else error.user_message, is_error=error is not None)

    # The effect of a command on a conversation

    async def _apply_result(
        self, mailbox: Mailbox, active: ActiveConversation, result: CommandResult, before_row: int
    ) -> CommandResult:
        """Apply the result of a command to a conversation. Requests before the row `before_row` are older than it."""
        if result.kind == "new":
            was_active = active.record.status.is_active
            active.record = active.record.with_status(conversation.allow_new_episode(active.record.status))
            active.echo_count = 0
            await self._services.questions.end_in_thread(*mailbox.key)
            if was_active:
                await self._services.expiry.on_ended(active.record.conversation_id, active.record.status.state)
        elif result.kind == "forget everywhere":
            self._drop_older(mailbox, before_row)
            ERASING_MAILBOX.set(mailbox)
            try:
                deletion = await self.context.perform(mailbox.sender, delete_person, OfWholePerson(person=mailbox.sender))
            except ConfigError as error:  # it is an agent, or is being deleted already
                return CommandResult(error.problem, is_error=True)
            return replace(result, text=describe_deletion(deletion))
        elif result.kind in ("forget this", "forget me"):
            self._drop_older(mailbox, before_row)
            wanted = (
                ClearSessions(agent=self.context.jid, person=mailbox.sender)
                if result.kind == "forget me"
                else ClearSessions(agent=self.context.jid, conversation=active.record.conversation_id)
            )
            clearance = await self.context.perform(mailbox.sender, clear_sessions, wanted)
            return replace(result, text=describe_deleted(clearance.erasures[0].report))
        return result

    def _drop_older(self, mailbox: Mailbox, before_row: int) -> None:
        """Drop older requests that a pause has held back."""
        for item in list(mailbox.queue):
            if isinstance(item, MailboxTask) or item.inbox_row < before_row:
                self._services.mailboxes.drop(mailbox, item)


def _cancel_if_new(mailboxes: Mailboxes, mailbox: Mailbox, is_new: bool) -> None:
    if is_new:
        mailbox.has_cancelled_turn = mailboxes.cancel(mailbox)
