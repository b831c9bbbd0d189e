"""An agent that asks, and pays when that is approved, and logs what it does, for tests that kill its process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalDeniedError, StepUncertainError
from tests.support.line_log import append_line


class AskingAgent:
    """An agent that asks who writes and `other` about each query, and pays once a person of the group `approvers` agrees.

    It answers with the query, both answers, and what became of the payment: its receipt, "denied" or "uncertain". Lines of the
    log (`LoggedLine`) have the phase "runs", "begins" or "ends", the query with the name of the step, and its result.
    """

    def __init__(self, log: str, other: str) -> None:
        self.manifest = AgentDefinition.simple("asking")
        self._log = Path(log)
        self._other = other

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Ask, and pay."""
        query = str(request.payload["query"])
        append_line(self._log, "runs", query, "")
        before = await session.run_once("before", self._act, f"{query}: before")
        color = await response.ask_person(f"{query}: which color?", choices=["red", "blue"])
        between = await session.run_once("between", self._act, f"{query}: between")
        size = await response.ask_person(f"{query}: which size?", to=self._other)
        try:
            paid = await session.run_approved("pay", self._act, f"{query}: pay", approvers="approvers")
        except ApprovalDeniedError:
            paid = "denied"
        except StepUncertainError:
            paid = "uncertain"
        append_line(self._log, "runs", query, "")
        await response.markdown(f"{query}: {color.text} {size.text} {before} {between} {paid}")

    async def _act(self, name: str) -> str:
        append_line(self._log, "begins", name, "")
        await asyncio.sleep(0.005)
        result = uuid4().hex
        append_line(self._log, "ends", name, result)
        return result
