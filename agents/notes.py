"""An agent that stores notes and answers questions about them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Response, Session, SessionHandle
from spade_coreason.agents.reminders import format_time, parse_when, split_reminder
from spade_coreason.contracts import Schedule
from spade_coreason.domain.texts.translation import N_, translate
from spade_coreason.exceptions import MemoryFullError

_QUESTION = re.compile(
    r"(when|what|where|who|whom|whose|which|why|how)('s)?\b"
    # "Do the dishes" is a note, "do I have a dentist" is a question.
    r"|(do|does|did|have|has|can|could|should|will|would|is|are|am|was|were) (i|you|we|he|she|it|they|my|your|our|there)\b",
    re.I,
)
_LIST = re.compile(r"(list|show|notes|what (do you know|did i (say|tell you))|what have i told you)\W*$", re.I)
_FORGET = re.compile(r"forget\s+(?P<what>\S(?:.*\w)?)\W*$", re.I)
# Words that do not describe the subject of a note.
_STOP_WORDS = frozenset(
    "a about am an and are at be call called can could did do does for from has have how i in is it know me my of on or our "
    "remember say should tell that the there they this to was we were what when where which who whom whose why will with would "
    "you your".split(" ")
)
_HELP = N_("""Tell me something, and I remember it. Ask me, and I look it up.
- `list` shows everything that I know from you
- `forget WORDS` forgets the notes with these words, `forget everything` all of them
- `remind me in 10 minutes to call Bob` reminds you; `my reminders` lists what is to come""")
_TIME_HELP = N_("""I do not know this time. Write it like one of these:
- `remind me in 10 minutes to call Bob`
- `remind me at 18:00 to call Bob`, `remind me tomorrow at 9 to call Bob`
- `remind me on 2030-12-24 at 18:00 to call Bob`
- `remind me every day at 9 to call Bob`, also `every weekday` or `every monday`""")
_REMIND = re.compile(r"remind me\b", re.I)
_REMINDERS = re.compile(r"((list|show) )?(my )?reminders\W*", re.I)
_CANCEL = re.compile(r"(cancel|delete) reminder (?P<number>\d{1,3})\W*", re.I)

_MONTHS = (
    N_("January"),
    N_("February"),
    N_("March"),
    N_("April"),
    N_("May"),
    N_("June"),
    N_("July"),
    N_("August"),
    N_("September"),
    N_("October"),
    N_("November"),
    N_("December"),
)


class NotesAgent:
    """Remembers what you tell it."""

    examples = ("My plane leaves on Friday at 7", "When does my plane leave?", "Remind me in 20 seconds to drink water")

    def __init__(self, manifest: AgentDefinition, memory: AgentInteractionMemory) -> None:
        self._manifest = manifest
        self._memory = memory

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Store a note, answer a question from the notes, list or delete some, or remind, as the text asks."""
        text = str(request.payload.get("query") or "").strip()
        conversation_id = str(request.metadata["conversation_id"])
        if "schedule" in request.metadata:
            await response.markdown(f"⏰ {text}")
            return
        notes = await self._memory.aget_information(conversation_id)
        zone = ZoneInfo(request.metadata.get("zone", "UTC"))
        if _REMIND.match(text):
            await response.markdown(await self._remind(text, request.created_at, zone, session))
        elif _REMINDERS.fullmatch(text):
            await response.markdown(await self._list_reminders(zone, session))
        elif cancel := _CANCEL.fullmatch(text):
            await response.markdown(await self._cancel_reminder(int(cancel["number"]), session))
        elif not text or text.lower() == "help":
            await response.markdown(translate(_HELP))
        elif _LIST.match(text):
            await response.markdown("\n".join(f"- {note}" for note in notes) or translate("You have not told me anything yet."))
        elif forget := _FORGET.match(text):
            await response.markdown(await self._forget(conversation_id, notes, forget["what"], session))
        elif text.endswith("?") or _QUESTION.match(text):
            await response.markdown(await self._look_up(text, notes, session))
        else:
            try:
                await self._remember(conversation_id, notes, text, request.created_at, session)
            except (MemoryFullError, ValueError) as error:
                await response.error(translate("I cannot remember this: {problem}.", problem=error))
            else:
                await response.markdown(translate('✓ I\'ll remember: "{note}".', note=text))

    async def _remind(self, text: str, now: datetime, zone: ZoneInfo, session: Session) -> str:
        # A turn that runs again does so later: its times must be the same.
        now = datetime.fromisoformat(await session.run_once("notes: now", now.isoformat))
        parts = split_reminder(text)
        try:
            when = parse_when(parts[0], now, zone) if parts else None
        except (ValueError, OverflowError):
            when = None
        if parts is None or when is None:
            return translate(_TIME_HELP)
        when = now + when if isinstance(when, timedelta) else when
        try:
            await session.remind(when, parts[1])
        except ValueError as error:
            return translate("I cannot remind you: {problem}.", problem=error)
        if isinstance(when, str):
            return translate('✓ I\'ll remind you {times} ({zone}): "{text}".', times=parts[0], zone=zone.key, text=parts[1])
        return translate('✓ I\'ll remind you on {time}: "{text}".', time=format_time(when, zone), text=parts[1])

    async def _list_reminders(self, zone: ZoneInfo, session: Session) -> str:
        found = await _find_reminders(session)
        lines = [f"{number}. {format_time(one.due_at, zone)}: {one.payload['query']}" for number, one in enumerate(found, 1)]
        return "\n".join(lines) or translate("You have no reminders.")

    async def _cancel_reminder(self, number: int, session: Session) -> str:
        async def choose(number: int) -> list[str] | None:
            found = await _find_reminders(session)
            return [found[number - 1].id, str(found[number - 1].payload["query"])] if 0 < number <= len(found) else None

        # A step, because the numbers are others once it is cancelled, and the turn may run again.
        chosen = await session.run_once("notes: chosen reminder", choose, number)
        if chosen is None:
            return translate("You have no reminder {number}; `my reminders` lists them.", number=number)
        await session.cancel_schedule(chosen[0])
        return translate('Cancelled: "{text}".', text=chosen[1])

    async def _remember(self, conversation_id: str, notes: list[str], text: str, now: datetime, session: SessionHandle) -> None:
        if text in notes:  # said twice, or the turn was interrupted after this and runs again
            return
        await self._memory.aadd_information(conversation_id, text)
        dates = await session.get("dates", {})
        # A conversation without dates of its own reads those of the person's other conversations.
        own = {note: date for note, date in dates.items() if note in notes}
        await session.store("dates", {**own, text: now.isoformat(timespec="minutes")})

    async def _look_up(self, question: str, notes: list[str], session: SessionHandle) -> str:
        keywords = _significant_words(question)
        scored = [(len(keywords & _significant_words(note)), number, note) for number, note in enumerate(notes)]
        best = max(scored, default=(0, 0, ""))
        if best[0] == 0:
            return translate("I don't know. You did not tell me.")
        dates = await session.get("dates", {})
        noted_at = dates.get(best[2])
        if not noted_at:
            return translate('You told me: "{note}".', note=best[2])
        local = datetime.fromisoformat(noted_at).astimezone()
        month = translate(_MONTHS[local.month - 1])
        return translate('You told me on {day} {month}: "{note}".', day=local.day, month=month, note=best[2])

    async def _forget(self, conversation_id: str, notes: list[str], words: str, session: SessionHandle) -> str:
        keywords = _significant_words(words)
        is_everything = words.lower() in ("everything", "all", "it all", "me")
        forgotten = [note for note in notes if is_everything or keywords & _significant_words(note)]
        if not forgotten:
            return translate('I know nothing about "{words}".', words=words)
        await self._memory.aremove_information(conversation_id, *forgotten)
        dates = await session.get("dates", {})
        await session.store("dates", {note: date for note, date in dates.items() if note in notes and note not in forgotten})
        return translate("Deleted:") + "\n" + "\n".join(f"- {note}" for note in forgotten)


async def _find_reminders(session: Session) -> list[Schedule]:
    return [one for one in await session.schedules() if one.kind == "reminder"]


def _significant_words(text: str) -> set[str]:
    words = {word.casefold() for word in re.findall(r"\w+", text)} - _STOP_WORDS
    return {word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words}
