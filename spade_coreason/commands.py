"""What a person may say to the platform instead of the agent: `/help` and its like; a second slash makes a text of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .admissions import Admissions
from .contracts import AgentInterface, Interaction
from .conversation import Rules
from .forget import Forgotten
from .session import interactions
from .stores import AgentStore, ConversationRow
from .stores.memory import AgentInteractionMemory

Kind = Literal["answer", "new", "forget this", "forget me"]

HELP = {
    "/help": "this list",
    "/status": "where this conversation is",
    "/new": "begin a new conversation; what I remember stays",
    "/conversations": "your conversations with me",
    "/history": "what we said in this conversation, the newest 10 turns (`/history 50`: 50)",
    "/memory": "what I remember from this conversation",
    "/cancel": "stop the answer that I am at work on",
    "/forget": "forget this conversation",
    "/forget me": "forget everything about you",
}
# What shows or deletes what is known of a person.
_PERSONAL = {"/conversations", "/history", "/memory", "/forget"}
_TURNS = 10
_MOST_TURNS = 200


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What to say, and what else to do."""

    text: str
    kind: Kind = "answer"


# For operators; nobody else is told of them.
_OPERATORS_COMMANDS = {"/admit", "/reject"}
_NAMES = frozenset(name.split()[0] for name in HELP) | _OPERATORS_COMMANDS


def command_in(text: str) -> str | None:
    """The command that a text is, in lower case with single blanks; None if it is for the agent, as `/me waves` is."""
    stripped = text.strip()
    if not stripped.startswith("/") or "\n" in stripped:
        return None
    words = stripped.lower().split()
    return " ".join(words) if words[0] in _NAMES else None


def without_escape(text: str) -> str:
    """A text for the agent: where two slashes begin what would be a command, one of them was there to say so."""
    if not text.lstrip().startswith("//"):
        return text
    plain = text.replace("//", "/", 1)
    return plain if command_in(plain) is not None else text


class Commands:
    """Obeys for one agent. Whoever asks sees and deletes their own only: whose it is, the server has said."""

    def __init__(
        self, agent: AgentInterface, store: AgentStore, memory: Callable[[], AgentInteractionMemory] | None, rules: Rules
    ) -> None:
        self._agent = agent
        self._store = store
        self._memory = memory
        self._rules = rules

    @property
    def memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory, where there is one."""
        return self._memory() if self._memory is not None else None

    async def obey(self, command: str, row: ConversationRow, now: datetime, admissions: Admissions | None = None) -> Obeyed:
        """What becomes of a command in a conversation."""
        if "/" in row.owner and command.split()[0] in _PERSONAL:  # an occupant of a room that does not show who they are
            return Obeyed(f"This room does not show me who you are. Send {command.split()[0]} to my own address.")
        match command.split():
            case ["/help"]:
                return Obeyed(self._help())
            case ["/status"]:
                return Obeyed(self._status(row, now))
            case ["/new"]:
                return Obeyed("Your next message begins a new conversation. What I remember stays.", "new")
            case ["/conversations"]:
                return Obeyed(await self._conversations(row.owner))
            case ["/history"]:
                return Obeyed(await self._history(row, _TURNS))
            case ["/history", number] if number.isascii() and number.isdigit() and int(number[:9]) > 0:
                return Obeyed(await self._history(row, min(int(number[:9]), _MOST_TURNS)))
            case ["/memory"]:
                return Obeyed(await self._remembered(row))
            case ["/cancel"]:
                return Obeyed("There is nothing to stop.")
            case ["/admit", person] if admissions is not None:
                return Obeyed(await admissions.admit(row.owner, person))
            case ["/reject", person] if admissions is not None:
                return Obeyed(await admissions.reject(row.owner, person))
            case ["/forget"]:
                return Obeyed(
                    f"This deletes what we said in this conversation and what I remember from it. {_confirm('/forget')}"
                )
            case ["/forget", "yes"]:
                return Obeyed("", "forget this")
            case ["/forget", "me"]:
                return Obeyed(f"This deletes all our conversations and all that I remember of you. {_confirm('/forget me')}")
            case ["/forget", "me", "yes"]:
                return Obeyed("", "forget me")
        return Obeyed(f"I do not know that kind of {command.split()[0]}. /help shows what there is.")

    def _help(self) -> str:
        metadata = self._agent.manifest.metadata
        description = next((c.description for c in self._agent.manifest.capabilities if c.description), "")
        lines = [f"I am {metadata.name}{': ' + description if description else '.'}", ""]
        lines += [f"{name}   {what}" for name, what in HELP.items()]
        lines += ["", "With two slashes it is a text for me."]
        return "\n".join(lines)

    def _status(self, row: ConversationRow, now: datetime) -> str:
        life, most = row.life, self._rules.max_interactions
        count = f"{life.interaction_count} of {most} messages" if most else f"{life.interaction_count} messages"
        text = f"This conversation is {life.state.value.replace('_', ' ')}: {count}, {row.turns} answered in all."
        if life.quiet_until is not None and life.quiet_until > now:
            text += f" It goes on at {life.quiet_until.astimezone():%H:%M:%S}."
        return text

    async def _conversations(self, owner: str) -> str:
        rows = [row for row in await self._store.conversations(owner=owner) if row.turns]
        if not rows:
            return "There are none."
        lines = []
        for row in rows:
            last = row.life.last_interaction.astimezone()
            lines.append(f"{last:%Y-%m-%d %H:%M}   {row.turns} turns   {row.life.state.value}   {row.conversation_id}")
        return "\n".join(lines)

    async def _history(self, row: ConversationRow, turns: int) -> str:
        found = interactions(await self._store.history(row.id, turns))
        return "\n\n".join(_turn(turn) for turn in found) or "We said nothing yet."

    async def _remembered(self, row: ConversationRow) -> str:
        memory = self.memory
        known = await memory.aget_information(row.conversation_id) if memory is not None else []
        own = await self._store.variables("conversation", row.conversation_id)
        person = await self._store.variables("person", row.owner)
        lines = [f"- {text}" for text in known]
        lines += [f"- {name}: {value}" for name, value in {**person, **own}.items()]
        return "\n".join(lines) or "Nothing."


def _confirm(command: str) -> str:
    return f"Write `{command} yes` to do it."


def deleted(gone: Forgotten) -> str:
    """What was deleted, in words."""
    if gone.is_nothing:
        return "There was nothing to forget."
    parts = [
        f"{len(gone.conversation_ids)} conversations",
        f"{gone.interactions} turns",
        f"{gone.variables} variables",
        f"memories of {gone.memories} conversations",
    ]
    return f"Forgotten: {', '.join(parts)}."


def _turn(turn: Interaction) -> str:
    asked = turn.input.get("query") if isinstance(turn.input, dict) else None
    shown = asked if isinstance(asked, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)
    return f"{turn.timestamp.astimezone():%Y-%m-%d %H:%M}\n> {shown}\n{turn.output.get('text', '')}".rstrip()
