"""An agent that pays when the group `approvers` agrees, and logs each payment, for tests that kill its process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalExpiredError, StepUncertainError
from tests.support.line_log import append_line


class PayingAgent:
    """An agent that pays each query once it is approved. Lines of the log have the query.

    Before that it waits, in each run of a turn, while there is a file named `closed`.
    """

    manifest = AgentDefinition.simple("paying")

    def __init__(self, log: str, closed: str = "") -> None:
        self._log = Path(log)
        self._closed = Path(closed) if closed else None

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Pay."""
        query = str(request.payload["query"])
        while self._closed is not None and self._closed.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        try:
            await session.run_approved("pay", self._pay, query, approvers="approvers")
        except ApprovalExpiredError:
            await response.markdown(f"not paid {query}")
        except StepUncertainError:
            await response.markdown(f"uncertain {query}")
        else:
            await response.markdown(f"paid {query}")

    def _pay(self, query: str) -> None:
        append_line(self._log, query)
