"""An agent that pays when the group `approvers` agrees, and logs each payment, for tests that kill its process."""

from __future__ import annotations

from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalExpiredError
from tests.support.line_log import append_line


class PayingAgent:
    """An agent that pays each query once it is approved. Lines of the log have the query."""

    manifest = AgentDefinition.simple("paying")

    def __init__(self, log: str) -> None:
        self._log = Path(log)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Pay."""
        query = str(request.payload["query"])
        try:
            await session.run_approved("pay", self._pay, query, approvers="approvers")
        except ApprovalExpiredError:
            await response.markdown(f"not paid {query}")
        else:
            await response.markdown(f"paid {query}")

    def _pay(self, query: str) -> None:
        append_line(self._log, query)
