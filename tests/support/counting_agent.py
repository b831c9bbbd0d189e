"""An agent whose answers are random and whose runs are logged, for tests that kill its process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from tests.support.line_log import append_line


class CountingAgent:
    """An agent that answers with its query and a random text, after a moment in which it can be killed."""

    manifest = AgentDefinition.simple("Counter", description="Answers once.")

    def __init__(self, log: str, work_s: float = 0.2) -> None:
        self._log = Path(log)
        self._work_s = work_s

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        append_line(self._log, "begins", request.payload["query"])
        await asyncio.sleep(self._work_s)
        await response.markdown(f"{request.payload['query']}: {uuid4()}")
        append_line(self._log, "answers", request.payload["query"])
