"""What one turn used: requests, tool calls and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..contracts import CloudEvent, ResponseHandler
from ..usage import USAGE


class Tally:
    """Counts as the turn goes on. `report` records it with the Interaction."""

    def __init__(self, agent: str, model: str) -> None:
        self._agent = agent
        self.model = model
        """The model that answered last."""
        self.requests = 0
        self.tool_calls = 0
        self._tokens: Counter[str] = Counter()
        self._is_estimated = False

    @property
    def tokens(self) -> int:
        """All that were used so far."""
        return self._tokens["total_tokens"]

    def add(self, usage: Mapping[str, int]) -> None:
        """The tokens of a reply as the server counts them."""
        self._tokens.update(usage)

    def estimate(self, prompt: int, completion: int) -> None:
        """The tokens of a reply of which the server did not say them, or was not waited for."""
        self._tokens.update(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        self._is_estimated = True

    async def report(self, response: ResponseHandler) -> None:
        """Emits the usage, where a model was asked."""
        if not self.requests:
            return
        used = {"model": self.model, "requests": self.requests, "tool_calls": self.tool_calls, **self._tokens}
        if self._is_estimated:
            used["estimated"] = True
        await response.emit(CloudEvent(type=USAGE, source=f"urn:agent:{self._agent}", data=used))
