"""The conversations of one agent that are in memory: by id, and how many characters of their turns stay there."""

from __future__ import annotations

from collections.abc import Iterable

from .mailbox import Mailbox

_MAX_CONVERSATIONS = 10_000
_SHORT_CHARACTERS = 2**12
"""The turns of a conversation that are shorter together are not counted."""
_MAX_CHARACTERS = 128 * 2**20
_MAX_CHARACTERS_PER_SENDER = 2 * 2**20


class ConversationCache:
    """The conversations in memory, each in its mailbox.

    An active conversation stays while the agent has fewer than 10,000 mailboxes. The turns of one sender may have 2 Mi
    characters in all, and those of all senders 128 Mi.
    """

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}
        self._characters = 0

    def __len__(self) -> int:
        return len(self._mailboxes)

    def find(self, conversation_id: str) -> Mailbox | None:
        """Return the mailbox of a conversation, or None if the conversation is not in memory."""
        return self._mailboxes.get(conversation_id)

    def find_owners(self, conversation_ids: Iterable[str]) -> dict[str, str]:
        """Return the owner of each of these conversations that is in memory."""
        return {found: self._mailboxes[found].sender for found in conversation_ids if found in self._mailboxes}

    def assign(self, mailbox: Mailbox, conversation_id: str) -> None:
        """Link a mailbox to its conversation. From now on no other sender of this process may take the id."""
        mailbox.conversation_id = conversation_id
        self._mailboxes[conversation_id] = mailbox

    def keep(self, mailbox: Mailbox, mailbox_count: int) -> bool:
        """Count the turns of an idle conversation. Return False if it is not active or its turns are too much."""
        active = mailbox.active
        if active is None or not active.record.status.is_active or mailbox_count >= _MAX_CONVERSATIONS:
            return False
        characters = active.turns.characters
        if characters <= _SHORT_CHARACTERS and not mailbox.kept_characters:
            return True
        added = characters - mailbox.kept_characters
        if added > 0 and (
            mailbox.sender_state.kept_characters + added > _MAX_CHARACTERS_PER_SENDER
            or self._characters + added > _MAX_CHARACTERS
        ):
            return False
        self._count(mailbox, added)
        return True

    def remove(self, mailbox: Mailbox) -> None:
        """Forget the conversation of a mailbox."""
        self._count(mailbox, -mailbox.kept_characters)
        if mailbox.conversation_id is not None and self._mailboxes.get(mailbox.conversation_id) is mailbox:
            del self._mailboxes[mailbox.conversation_id]

    def _count(self, mailbox: Mailbox, added: int) -> None:
        mailbox.kept_characters += added
        mailbox.sender_state.kept_characters += added
        self._characters += added
