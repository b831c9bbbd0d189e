"""The requests of programs that are queued or run, each with the addresses that wait for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from ...domain.messages import InboundRequest, Repeated
from ...storage import Commit
from .output import TurnOutput

_MAX_LISTENERS = 16
"""Number of further addresses that get the reply to one request."""


class InFlightRequest:
    """A program's request from its arrival to the end of its turn, with the addresses that wait for the reply."""

    __slots__ = ("_ended", "_has_waited", "channel_name", "digest", "listeners", "output", "repeated_rows", "sender", "stored")

    def __init__(self, incoming: InboundRequest, digest: bytes, stored: Commit[bool]) -> None:
        self.sender = incoming.sender
        self.channel_name = incoming.channel_name
        self.digest = digest
        self.stored = stored
        self.listeners: list[str] = []
        """The full JIDs that sent the request too."""
        self.repeated_rows: list[int] = []
        """The inbox rows of the repeated requests from these addresses. They stay open until the turn is stored."""
        self.output: TurnOutput | None = None
        """The output of its turn, once that has begun."""
        self._ended: asyncio.Event | None = None
        self._has_waited = incoming.earlier_runs is not None

    def has_recipient(self, address: str) -> bool:
        """Return True if an address (a full JID) gets the reply already."""
        return address == self.sender or address in self.listeners

    def accepts_address(self, address: str) -> bool:
        """Return True if the reply may go to an address (a full JID) that does not get it already."""
        return not self.has_recipient(address) and len(self.listeners) < _MAX_LISTENERS

    def attach(self, address: str) -> bool:
        """Send the whole reply to an address (a full JID).

        Return False if the turn has sent its last message already, or if an earlier run, which asked a person, has sent the
        beginning.
        """
        if self._has_waited or (self.output is not None and self.output.sender.is_closed):
            return False
        if not self.has_recipient(address):
            self.listeners.append(address)
        if self.output is not None:
            self.output.sender.repeat_to(address)
        return True

    def open_output(self, output: TurnOutput) -> None:
        """Set the output of the turn, which begins. What a run has sent that could not be stored counts no more."""
        if self.output is not None and self.output.sender.last_sent and not self._has_waited:
            output.sender.emit_now(Repeated())
        self.output = output
        for address in self.listeners:
            output.sender.repeat_to(address)

    async def wait_until_ended(self) -> None:
        """Wait until the turn is stored, or the request is dropped."""
        if self._ended is None:
            self._ended = asyncio.Event()
        await self._ended.wait()

    def end(self) -> None:
        """Wake the tasks in `wait_until_ended`."""
        if self._ended is not None:
            self._ended.set()


class InFlightRequests:
    """The requests of programs that are queued or run, by inbox key."""

    def __init__(self) -> None:
        self._open: dict[UUID, InFlightRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, key: UUID, incoming: InboundRequest, digest: bytes, stored: Commit[bool]) -> None:
        """Add a request that is queued. One with this key stays as it is."""
        if key not in self._open:
            self._open[key] = InFlightRequest(incoming, digest, stored)

    def get(self, key: UUID) -> InFlightRequest | None:
        """Return the request with a key, or None."""
        return self._open.get(key)

    def open_output(self, key: UUID, output: TurnOutput) -> None:
        """Set the output of the request with a key, if it is here, see `InFlightRequest.open_output`."""
        if (request := self._open.get(key)) is not None:
            request.open_output(output)

    def remove(self, key: UUID, stored: Commit[bool]) -> Sequence[int]:
        """Remove a request whose turn has ended, or that was dropped, and return the inbox rows of its repetitions.

        A request with this key but another commit than `stored` stays: the caller's is a repetition of it.
        """
        request = self._open.get(key)
        if request is None or request.stored is not stored:
            return ()
        del self._open[key]
        request.end()
        return request.repeated_rows
