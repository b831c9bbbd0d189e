"""The gate before the turns of one agent: paused by an operator, or held until the platform has stopped."""

from __future__ import annotations

from ..event_emitter import EventEmitter
from .mailbox import MailboxTask, QueuedRequest


class TurnGate:
    """Decides whether further items may start. Running turns finish, and commands of the platform still run."""

    def __init__(self) -> None:
        self.is_paused = False
        """True while an operator has paused the agent."""
        self.is_closed = False
        """True while the agent is paused or held. `lets_through` tells what is started then."""
        self.opened: EventEmitter[[]] = EventEmitter()
        """Emitted when what waits may start."""
        self._holds = 0

    def pause(self) -> None:
        """Start no further items for the agent, until `resume`."""
        self.is_paused = self.is_closed = True

    def resume(self) -> None:
        """End a pause: start what waits, unless it is held."""
        self.is_paused = False
        self._open_unless_held()

    def hold(self) -> None:
        """Start no further requests of people, until `release` was called as often. It is no pause: they are not told."""
        self._holds += 1
        self.is_closed = True

    def release(self) -> None:
        """End a hold: start what waits, unless it is held or paused otherwise."""
        self._holds -= 1
        self._open_unless_held()

    def _open_unless_held(self) -> None:
        self.is_closed = self.is_paused or self._holds > 0
        if not self.is_closed:
            self.opened.emit()

    def lets_through(self, item: QueuedRequest | MailboxTask) -> bool:
        """Return False for an item for the agent while it is paused or held.

        A hold lets through what another agent has passed on: a turn that has to finish may wait for its answer.
        """
        if not (self.is_closed and item.is_for_agent):
            return True
        return not self.is_paused and isinstance(item, QueuedRequest) and item.incoming.hops > 0
