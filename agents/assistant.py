"""An assistant with a language model: it remembers, looks into documents, and asks other agents."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from spade_coreason import AgentRequest, ResponseHandler, Session, SessionHandle
from spade_coreason.agents.reminders import format_time, parse_when
from spade_coreason.contracts import Schedule
from spade_coreason.llm.agent import LLMAgent


def current_time(request: AgentRequest, timezone: str = "") -> str:
    """The date and the time now.

    Args:
        timezone: a name such as Europe/Madrid; by default that of the person
    """
    try:
        return datetime.now(ZoneInfo(timezone) if timezone else _find_zone(request)).strftime("%A, %d %B %Y, %H:%M (%Z)")
    except (ZoneInfoNotFoundError, ValueError):
        return f"There is no time zone {timezone!r}; use a name such as Europe/Madrid."


async def remind_me(when: str, text: str, request: AgentRequest, session: Session) -> str:
    """Remind the person of something.

    Args:
        when: local time in ISO 8601 such as 2030-12-24T18:00, or "in 10 minutes", "tomorrow at 9", "every weekday at 9"
        text: what the reminder says to the person
    """
    zone = _find_zone(request)
    try:
        due = parse_when(when, request.created_at, zone)
    except (ValueError, OverflowError):
        return (
            f"error: {when!r} is no time to come; write local time as 2030-12-24T18:00, or in 10 minutes; it is now"
            f" {format_time(request.created_at, zone)}"
        )
    if not text.strip():
        return "error: text is empty; write what the reminder says"
    try:
        schedule_id = await session.remind(due, text)
    except ValueError as error:
        return f"error: {error}"
    if isinstance(due, datetime):
        return f"The reminder comes on {format_time(due, zone)}."
    if isinstance(due, timedelta):
        return f"The reminder comes on {format_time(request.created_at + due, zone)}."
    times = [one.due_at for one in await session.schedules() if one.id == schedule_id]
    return f"The reminder comes {when}" + (f", first on {format_time(times[0], zone)}." if times else ".")


async def list_reminders(request: AgentRequest, session: Session) -> str:
    """List the reminders of the person, with their numbers."""
    zone = _find_zone(request)
    lines = [
        f"{number}. {format_time(one.due_at, zone)}: {one.payload['query']}"
        for number, one in enumerate(await _find_reminders(session), 1)
    ]
    return "\n".join(lines) or "There are no reminders."


async def cancel_reminder(number: int, session: Session) -> str:
    """Cancel a reminder of the person.

    Args:
        number: its number in list_reminders
    """
    found = await _find_reminders(session)
    if not 0 < number <= len(found):
        return f"error: there is no reminder {number}; list_reminders has them"
    await session.cancel_schedule(found[number - 1].id)
    return f"Cancelled: {found[number - 1].payload['query']}"


async def _find_reminders(session: Session) -> list[Schedule]:
    return [one for one in await session.schedules() if one.kind == "reminder"]


def _find_zone(request: AgentRequest) -> ZoneInfo:
    return ZoneInfo(request.metadata.get("zone", "UTC"))


class AssistantAgent(LLMAgent):
    """Answers with a language model, remembers what matters to you, and looks into documents."""

    examples = ("Please remember: my train leaves at noon.", "Remind me in 20 seconds to look out of the window")

    default_prompt = (
        "You are a helpful assistant whom people write to in a chat. Answer briefly and plainly, in the language in which you"
        " are asked; Markdown is welcome. When a person tells you something that will matter later (a name, a wish, a date, a"
        " decision), remember it with remember_interaction_info, once. When you do not know something, look it up with recall"
        " before you say so. Never make up facts."
    )
    default_tools = (current_time, remind_me, list_reminders, cancel_reminder)

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Answer with the model. A reminder that is due is sent without it, so it comes also while the model is down."""
        if "schedule" in request.metadata:
            await response.markdown(f"⏰ {request.payload['query']}")
        else:
            await super().assist(request, session, response)
