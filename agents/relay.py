"""An agent that asks other agents and combines their answers."""

from __future__ import annotations

import asyncio

from spade_coreason import AgentDefinition, AgentRequest, PeerError, Peers, ResponseHandler, SessionHandle


class RelayAgent:
    """Asks other agents for you; they keep what comes through here apart from what you tell them yourself.

    Each answer is a line of its own. Two people behind one relay never see what the other told the agents that it asks.
    """

    def __init__(self, manifest: AgentDefinition, peers: Peers, ask: list[str], timeout_s: float = 30.0) -> None:
        if isinstance(ask, str) or not ask:
            raise ValueError('the option "ask" is a list of agents, such as ["echo@localhost", "notes@localhost"]')
        self._manifest = manifest
        self._peers = peers
        self._peer_jids = ask
        self._timeout_s = timeout_s

    @property
    def manifest(self) -> AgentDefinition:
        """What it is."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Asks all of them at once; one that is away, refuses or fails is a line of its own."""
        await response.thought(f"Asking {' and '.join(self._peer_jids)}…")
        answers = await asyncio.gather(*(self._ask_peer(jid, request) for jid in self._peer_jids))
        await response.markdown("\n\n".join(answers))  # one line break would join them in a paragraph

    async def _ask_peer(self, jid: str, request: AgentRequest) -> str:
        name = self._name(jid)
        try:
            answer = await self._peers.ask(jid, request.create_child(request.payload), self._timeout_s)
        except PeerError as error:
            return f"{name}: no answer ({error})"
        return f"{name}: {answer.text or '(no text)'}"

    def _name(self, jid: str) -> str:
        """Its local part; the whole JID where two that are asked would have the same name."""
        local = jid.partition("@")[0]
        return local if sum(other.partition("@")[0] == local for other in self._peer_jids) == 1 else jid
