"""Agents that keep what they are told in every place that an agent has, and pass it on."""

from __future__ import annotations

from uuid import UUID

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Peers, Response, Session

_ONE_SESSION = UUID(int=7)


class Keeper:
    """Keep what it is told, and fail if that is a failure."""

    manifest = AgentDefinition.simple("keeper")

    def __init__(self, memory: AgentInteractionMemory) -> None:
        self._memory = memory

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Keep the text of a request."""
        text = request.payload["query"]
        await session.store(f"last {text}", text)
        await self._memory.aadd_information(request.metadata["conversation_id"], text)
        await response.audit("keeper", "keep", text, True)
        await session.run_once("step", str, text)
        if "fail" in text:
            raise RuntimeError(text)
        await response.markdown(f"kept {text}")


class Asker(Keeper):
    """Ask other agents for everybody in one conversation, publish what it hears, and keep it as well."""

    def __init__(self, memory: AgentInteractionMemory, peers: Peers, ask: tuple[str, ...] = ("keeper@localhost",)) -> None:
        super().__init__(memory)
        self._peers = peers
        self._asked = ask

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Pass a request on, then keep its text."""
        for jid in self._asked:
            child = request.create_child(dict(request.payload))
            await self._peers.ask(jid, child.model_copy(update={"session_id": _ONE_SESSION}))
        await self._peers.publish("news", request.payload)
        await super().assist(request, session, response)
