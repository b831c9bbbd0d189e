"""An agent that repeats each query. Its module imports little: memory of a process with it is that of the platform."""

from __future__ import annotations

from spade_coreason import AgentDefinition, AgentRequest, Response, Session


class EchoAgent:
    """An agent that answers in one block."""

    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        await response.markdown(str(request.payload["query"]))
