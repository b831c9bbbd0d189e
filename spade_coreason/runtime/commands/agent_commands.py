"""The commands that an agent declares by `@command`: each runs like a turn, which is not stored in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...domain.forms.commands import CommandResult
from ...domain.messages import Failed
from ...domain.texts.translation import translate
from ...memory import ActiveConversation
from ...storage import AgentRepository
from ..channels import SendMessages
from ..mailboxes.mailbox import Mailbox, QueuedRequest
from ..observability.metrics import Metrics, Outcome
from ..replies.output import TurnOutputs
from ..turns.turn import TurnFactory, TurnRunner
from ..turns.turn_execution import TurnStore
from .decorator import AgentCommand
from .effects import CommandEffects


class AgentCommandRunner:
    """Runs the commands of one agent."""

    def __init__(
        self,
        repository: AgentRepository,
        outputs: TurnOutputs,
        factory: TurnFactory,
        runner: TurnRunner,
        store: TurnStore,
        effects: CommandEffects,
        metrics: Metrics,
    ) -> None:
        self._repository = repository
        self._outputs = outputs
        self._factory = factory
        self._runner = runner
        self._store = store
        self._effects = effects
        self._metrics = metrics

    async def run(
        self,
        mailbox: Mailbox,
        active: ActiveConversation,
        queued: QueuedRequest,
        command: AgentCommand,
        values: Mapping[str, Any],
        send: SendMessages | None = None,
    ) -> CommandResult:
        """Run a command like a turn, and send its reply. With `send` it is sent there, for a caller that shows the result."""
        output = self._outputs.open_plain(queued.incoming, queued.key, send)
        turn = self._factory.make(mailbox, active, queued, output, active.person)
        repository, sends_reply = self._repository, send is None

        async def work() -> None:
            text = await command.run(turn.session, **{field.name: values[field.name] for field in command.fields})
            await turn.response.markdown(translate("Done.") if text is None else str(text))

        turn.mailbox.handled = turn.mailbox.current = turn.queued
        last_event = await self._runner.run(turn, work)
        if turn.is_deleted:
            if sends_reply:
                output.cancel()
                repository.inbox.close(turn.queued.inbox_row)
            return CommandResult(translate("I did not do this, because the conversation was deleted."), is_error=True)
        if last_event is None:
            self._metrics.outcomes["cancelled"] += 1
            if sends_reply:
                await repository.inbox.finish(turn.queued.inbox_row, active.record, None, None)
            return CommandResult(translate("Stopped."))
        final = output.finish(last_event)
        if turn.changes.is_ended:
            await self._effects.begin_episode(mailbox, active)
        if sends_reply:
            await self._store.store(turn, final, None)
            await turn.queued.stored  # as after a turn
        else:
            variables = turn.changes.close()
            await repository.save_conversation(active.record)
            await asyncio.gather(*(repository.save_variable(*variable) for variable in variables))
        turn.changes.publish()
        outcome: Outcome = "failed" if isinstance(last_event, Failed) else "command"
        self._metrics.record_reply(turn.queued.received_at_s, outcome, turn.started_at_s)
        error = output.reported_error
        return CommandResult("\n\n".join(output.texts) if error is None else error.user_message, is_error=error is not None)
