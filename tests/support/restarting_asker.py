"""An agent of a process of its own that asks a peer twice."""

from __future__ import annotations

from spade_coreason import AgentDefinition, AgentRequest, Peers, Response, Session


class RestartingAsker:
    """Asks a peer "a", then "wait"."""

    manifest = AgentDefinition.simple("asker")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer with both answers."""
        answers = [(await self._peers.ask("peer@localhost", query)).text for query in ("a", "wait")]
        await response.markdown(", ".join(answers))
