"""The agents of a chat, one of whom is spoken to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...domain.jid import local_part


class ChatRoster:
    """`agents` are their JIDs and descriptions, `current` says which of them is spoken to first."""

    def __init__(self, agents: Sequence[tuple[str, str]], current: int = 0) -> None:
        self._jids = [jid for jid, _ in agents]
        self._descriptions = [description for _, description in agents]
        self._current = current
        locals_ = Counter(local_part(jid) for jid in self._jids)
        self._choices: dict[str, list[str]] = {}
        self._commands: dict[str, Mapping[str, str]] = {}
        self.names = [local_part(jid) if locals_[local_part(jid)] == 1 else jid for jid in self._jids]

    @property
    def jid(self) -> str:
        """Who is spoken to."""
        return self._jids[self._current]

    @property
    def name(self) -> str:
        """Their name: the local part, or the JID where two would have the same."""
        return self.names[self._current]

    @property
    def named_descriptions(self) -> list[tuple[str, str]]:
        """The names and descriptions of all."""
        return list(zip(self.names, self._descriptions, strict=True))

    @property
    def commands(self) -> Mapping[str, str]:
        """What may be asked of the platform of whoever is spoken to, as far as it is known, and what each does."""
        return self._commands.get(self.jid, {})

    @property
    def jids_without_commands(self) -> list[str]:
        """The JIDs of those whose commands are not known."""
        return [jid for jid in self._jids if jid not in self._commands]

    def set_commands(self, jid: str, commands: Mapping[str, str]) -> None:
        """Says what commands an agent knows, and what each does."""
        self._commands[jid] = commands

    def set_choices(self, jid: str, choices: Sequence[str]) -> None:
        """Says what an agent offers as answers to what it has just said; nothing where it offers none."""
        self._choices[jid] = list(choices)

    def resolve_choice(self, text: str) -> str:
        """What is said with `text` to whoever is spoken to: a number stands for the answer offered with it."""
        offered = self._choices.get(self.jid, [])
        is_number = text.isascii() and text.isdigit() and text not in offered
        return offered[int(text) - 1] if is_number and 0 < int(text) <= len(offered) else text

    def switch_by(self, step: int) -> None:
        """Speaks to the next, or the one before."""
        self._current = (self._current + step) % len(self._jids)

    def switch_to(self, name: str) -> bool:
        """Speaks to the one with this name or JID, if there is one."""
        wanted = name.casefold()
        for number, known in enumerate(zip(self._jids, self.names, strict=True)):
            if wanted in known:
                self._current = number
                return True
        return False
