"""Incidents: a failure gets a number, which the sender is told. It is stored with its exceptions under that number."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import datetime

from ...domain.texts.error_chain import describe_error_chain
from ...storage import AgentRepository, Commit

log = logging.getLogger(__name__)


class IncidentRecorder:
    """Stores the incidents of one agent."""

    def __init__(self, repository: AgentRepository, clock: Callable[[], datetime]) -> None:
        self.agent = repository.agent
        self._repository = repository
        self._clock = clock

    @staticmethod
    def make_number() -> str:
        """Return the number of a new incident: eight hexadecimal digits."""
        return secrets.token_hex(4)

    def record(self, number: str, error: BaseException, person: str, conversation_id: str | None = None) -> Commit[None]:
        """Store an incident of a person (a bare JID). Tell the person once the commit is done, stored or not."""
        chain = describe_error_chain(error)
        stored = self._repository.incidents.record(number, person, conversation_id, self._clock(), chain)
        stored.on_failed(lambda problem: self._warn(number, problem))
        return stored

    def _warn(self, number: str, problem: BaseException) -> None:
        log.warning("%s: incident %s cannot be stored and is in the log only: %s", self.agent, number, problem)
