"""The agents of a chat, one of which is the current one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...domain.jid import local_part
from ...domain.texts.terminal_text import escape_label


class ChatRoster:
    """The agents of a chat and the current one. `agents` are JIDs and descriptions; `current` is the index of the first."""

    def __init__(self, agents: Sequence[tuple[str, str]], current: int = 0) -> None:
        self._jids = [jid for jid, _ in agents]
        self._descriptions = [description for _, description in agents]
        self._current = current
        local_part_counts = Counter(local_part(jid) for jid in self._jids)
        self._choices: dict[str, list[str]] = {}
        self._commands: dict[str, Mapping[str, str]] = {}
        self.names = [escape_label(local_part(jid) if local_part_counts[local_part(jid)] == 1 else jid) for jid in self._jids]

    @property
    def jid(self) -> str:
        """The JID of the current agent."""
        return self._jids[self._current]

    @property
    def name(self) -> str:
        """The name of the current agent: its local part, or its JID if two agents share that local part."""
        return self.names[self._current]

    @property
    def named_descriptions(self) -> list[tuple[str, str]]:
        """The names and descriptions of all agents."""
        return list(zip(self.names, self._descriptions, strict=True))

    @property
    def commands(self) -> Mapping[str, str]:
        """The known commands of the current agent, each with its description."""
        return self._commands.get(self.jid, {})

    @property
    def jids_without_commands(self) -> list[str]:
        """The JIDs of the agents whose commands are not known yet."""
        return [jid for jid in self._jids if jid not in self._commands]

    def set_commands(self, jid: str, commands: Mapping[str, str]) -> None:
        """Set the commands of an agent, each with its description."""
        self._commands[jid] = commands

    def set_choices(self, jid: str, choices: Sequence[str]) -> None:
        """Set the answers that an agent offers after its last reply; an empty sequence if it offers none."""
        self._choices[jid] = list(choices)

    def resolve_choice(self, text: str) -> str:
        """Return the text to send for `text`: a number stands for the answer that the current agent offered under it."""
        choices = self._choices.get(self.jid, [])
        is_number = text.isascii() and text.isdigit() and text not in choices
        return choices[int(text) - 1] if is_number and 0 < int(text) <= len(choices) else text

    def switch_by(self, step: int) -> None:
        """Make the next agent the current one; -1 selects the previous one."""
        self._current = (self._current + step) % len(self._jids)

    def switch_to(self, name: str) -> bool:
        """Make the agent with this name or JID the current one. Return False if there is none."""
        wanted = name.casefold()
        for number, known in enumerate(zip(self._jids, self.names, strict=True)):
            if wanted in known:
                self._current = number
                return True
        return False
