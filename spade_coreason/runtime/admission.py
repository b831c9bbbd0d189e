"""Admission: the limits of hops between agents and of a conversation."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ..contracts import ErrorCode
from ..domain import conversation
from ..domain.conversation import RUN, Decision, Rules
from ..domain.messages import InboundRequest, Refused
from ..memory import ActiveConversation


def decide_for_conversation(active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules) -> Decision:
    """Decide what a request does to its conversation: run it, refuse it, or refuse it with a notice.

    Counts in `active` how often the sender has echoed the last reply of the agent. Requests of programs are not counted.
    """
    decision = conversation.decide_on_message(active.record.status, now, rules)
    if incoming.channel == "program":
        return decision
    text = str(incoming.payload.get("query", ""))
    is_echo = bool(active.last_reply) and active.last_reply in text and decision.ended_state is None
    active.echo_count = active.echo_count + 1 if is_echo else 0
    if active.echo_count >= conversation.ECHOES_UNTIL_PAUSE and decision.outcome is RUN:
        uncounted = replace(decision.status, interaction_count=decision.status.interaction_count - 1)  # an echo gets no turn
        return conversation.refuse_echo(uncounted, now, rules)
    return decision


def refusal_notice(
    active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules, *, has_commands: bool
) -> Refused:
    """Build the notice that a conversation pauses: the reason, and how to go on.

    The runner sends it once to a person, and each time to a program, because a program waits for a reply.
    """
    status, limit = active.record.status, rules.max_interactions
    quiet_until = status.quiet_until
    retry_after_s = rules.cooldown.total_seconds() if quiet_until is None else (quiet_until - now).total_seconds()
    text = (
        f"That is all for now: {'1 message is' if limit == 1 else f'{limit} messages are'} the limit of a conversation."
        if limit and status.interaction_count >= limit
        else "I pause here: this conversation goes round in circles."
    )
    text += f" Write again in {_format_duration(retry_after_s)}, or begin another thread"
    text += " (or say /new)." if has_commands and incoming.may_be_command else "."
    return Refused(text, ErrorCode.TOO_MANY_REQUESTS, retry_after_s)


def _format_duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


MAX_HOPS = 16
"""Largest number of agents that a request may pass through.

Each agent asks in a conversation of its own, so no other limit would end a circle.
"""


def refuse_hops(incoming: InboundRequest) -> Refused | None:
    """Return the refusal of a request that passed through too many agents; None for any other."""
    if incoming.hops <= MAX_HOPS:
        return None
    text = f"This was asked through {incoming.hops} agents one after the other: they seem to ask in a circle."
    return Refused(text, ErrorCode.TOO_MANY_REQUESTS)
