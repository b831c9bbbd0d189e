"""Execution of commands. A command is no turn: it is neither counted nor stored in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ...domain.channel_kinds import PERSON
from ...domain.forms.command_parser import ParsedCommand
from ...domain.forms.commands import Command, CommandResult
from ...domain.identifiers import recover_thread
from ...domain.messages import Completed, InboundRequest, TextEmitted
from ...domain.texts.translation import LANGUAGE, translate
from ...memory import ActiveConversation
from ...storage import AgentRepository, Commit
from ..access.admission import Admission
from ..channels import OutboundMessage
from ..mailboxes.mailbox import Mailbox, MailboxTask, QueuedRequest
from ..replies.outbox import Outbox
from ..replies.output import dump_reply
from .agent_commands import AgentCommandRunner
from .context import CommandContext
from .effects import CommandEffects
from .registry import Commands


class CommandExecutor:
    """Executor of one agent's commands."""

    def __init__(
        self,
        repository: AgentRepository,
        commands: Commands,
        context: CommandContext,
        admission: Admission,
        agent_commands: AgentCommandRunner,
        effects: CommandEffects,
        outbox: Outbox,
    ) -> None:
        self._repository = repository
        self.commands = commands
        self.context = context
        self._mailboxes = context.mailboxes
        self._admission = admission
        self._agent_commands = agent_commands
        self._effects = effects
        self._outbox = outbox

    # Outside of a conversation

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> CommandResult:
        """Run a command of `owner` (a bare JID) outside of a turn, and return its result.

        The command applies to `conversation_id`, which must belong to `owner`; by default to the newest conversation of
        `owner`. A command that changes a conversation waits for its turn there. Raises `StoreError`; `FieldError` for a
        value that the command does not accept; `CancelledError` if the conversation is deleted while the command waits.
        """
        if not self._mailboxes.is_accepting:
            return CommandResult(translate("I am about to stop. Please try again later."), is_error=True)
        repository = self._repository
        records = await repository.list_conversations(owner=owner, limit=1)
        if conversation_id is not None:
            found = await repository.find_conversations([conversation_id])
            records = [record for record in found.values() if record.owner == owner] or records
        record = self.context.loader.current_record(records[0]) if records else None
        if command.is_immediate or not self.commands.may_run(owner, command):
            return await self.commands.run(command, values, self.context, owner, record)
        thread = recover_thread(record.conversation_id, owner, self.context.jid) if record is not None else None
        is_for_agent = command.name in self.commands.agent_commands
        if is_for_agent:
            incoming = InboundRequest(PERSON, owner, "", thread, {"query": command.text, **values}, "", owner=owner)
            refusal = self._admission.refuse(incoming, is_for_agent=True)
            if refusal is not None:
                if refusal.incident is not None:
                    await refusal.incident.wait()
                return CommandResult(refusal.problem.message, is_error=True)
        mailbox = self._mailboxes.get_or_create(owner, thread)
        before_row = max((item.inbox_row for item in mailbox.queue if isinstance(item, QueuedRequest)), default=0)
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        work = partial(self._run_task, mailbox, command, values, before_row, LANGUAGE.get())
        self._mailboxes.put_task(mailbox, MailboxTask(work, is_for_agent, future))
        return await future

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Send the result of a command to a person, outside of any turn."""
        incoming = InboundRequest(PERSON, owner, "", None, {}, "", owner=owner)
        self._outbox.channel_of(incoming).send(self._encode_result(incoming, uuid4(), result))

    async def _run_task(
        self, mailbox: Mailbox, command: Command, values: Mapping[str, Any], before_row: int, language: str | None
    ) -> CommandResult:
        """Run a command from outside of the conversation. Requests up to `before_row` that still wait are older."""
        LANGUAGE.set(language)
        active = mailbox.active or await self.context.loader.load(mailbox)
        agent_command = self.commands.agent_commands.get(command.name)
        if agent_command is not None:
            incoming = InboundRequest(
                PERSON, mailbox.sender, "", mailbox.key[1], {"query": command.text}, "", owner=mailbox.sender
            )
            queued = QueuedRequest(incoming, uuid4(), 0, Commit.completed(True), time.monotonic())
            return await self._agent_commands.run(mailbox, active, queued, agent_command, values, lambda messages: None)
        result = await self.commands.run(command, values, self.context, mailbox.sender, active.record)
        result = await self._effects.apply(mailbox, active, result, before_row + 1)
        if mailbox.active is not None:
            await self._repository.save_conversation(active.record)
        return result

    # In a conversation, instead of a turn

    async def reply_to_command(
        self, mailbox: Mailbox, active: ActiveConversation, queued: QueuedRequest, parsed: ParsedCommand | str
    ) -> None:
        """Reply to a command in a message; a `parsed` text is an unknown command. StoreError if the reply is not stored."""
        repository = self._repository
        agent_command = self.commands.agent_commands.get(parsed.command.name) if isinstance(parsed, ParsedCommand) else None
        may_run = isinstance(parsed, ParsedCommand) and self.commands.may_run(mailbox.sender, parsed.command)
        if isinstance(parsed, ParsedCommand) and agent_command is not None and parsed.values is not None and may_run:
            await self._agent_commands.run(mailbox, active, queued, agent_command, parsed.values)
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
            has_stopped = await self._effects.stop(mailbox)
            result = CommandResult(translate("Stopped.") if has_stopped else translate("There is nothing to stop."))
        else:
            kind = queued.incoming.kind
            is_from_program = kind.is_program and not kind.is_page
            result = await self.commands.run_parsed(
                parsed, self.context, mailbox.sender, active.record, is_from_program=is_from_program
            )
            result = await self._effects.apply(mailbox, active, result, queued.inbox_row)
        messages = self._encode_result(queued.incoming, queued.key, result, active.record.conversation_id)
        reply = dump_reply(messages) if messages else None  # what was asked for follows by itself
        if mailbox.active is not None:  # else it was deleted, and must not be created again
            await repository.inbox.finish(queued.inbox_row, active.record, None, reply, is_command=True)
        elif result.kind == "forget this" and reply is not None:
            await repository.inbox.store_reply(queued.inbox_row, reply, is_command=True)
        # The reply names a person who is deleted. It is not stored: a crash loses it, and not the deletion.
        await queued.stored
        self._admission.metrics.outcomes["command"] += 1
        if messages:
            self._outbox.send_final(queued.incoming.channel_name, queued.inbox_row, messages)

    def _encode_result(
        self, incoming: InboundRequest, key: UUID, result: CommandResult, conversation_id: str = ""
    ) -> list[OutboundMessage]:
        text = "\n".join(part for part in (result.text, result.link) if part)
        return self._outbox.encode(
            incoming,
            key,
            TextEmitted(text, 1, choices=result.choices),
            *(TextEmitted(part, number) for number, part in enumerate(result.extra_texts, 2)),
            Completed(conversation_id, "active"),  # programs wait for it
        )
