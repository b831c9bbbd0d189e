"""An agent that asks other agents and combines their replies."""

from __future__ import annotations

import asyncio

from spade_coreason import AgentDefinition, AgentRequest, PeerError, Peers, ResponseHandler, SessionHandle
from spade_coreason.domain.texts.translation import translate


class RelayAgent:
    """Asks other agents for you. What they hear here, they keep apart from your own chats with them.

    Each reply is a line of its own. Two people who use one relay never see what the other told the agents that it asks.
    """

    examples = ("My train leaves at noon", "When does my train leave?")

    def __init__(self, manifest: AgentDefinition, peers: Peers, ask: list[str], timeout_s: float = 30.0) -> None:
        if isinstance(ask, str) or not ask:
            raise ValueError('the option "ask" must be a list of agents, such as ["echo@localhost", "notes@localhost"]')
        self._manifest = manifest
        self._peers = peers
        self._peer_jids = ask
        self._timeout_s = timeout_s

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Ask all agents at once. One that is offline, refuses or fails has a line that says so."""
        await response.thought(translate("Asking {agents}…", agents=translate(" and ").join(self._peer_jids)))
        answers = await asyncio.gather(*(self._ask_peer(jid, request) for jid in self._peer_jids))
        await response.markdown("\n\n".join(answers))  # a single line break would join them into one paragraph

    async def _ask_peer(self, jid: str, request: AgentRequest) -> str:
        name = self._name(jid)
        try:
            answer = await self._peers.ask(jid, request.create_child(request.payload), self._timeout_s)
        except PeerError as error:
            return translate("{agent}: no answer ({problem})", agent=name, problem=error)
        return f"{name}: {answer.text or translate('(no text)')}"

    def _name(self, jid: str) -> str:
        """Return the local part of the JID, or the whole JID if another agent has the same local part."""
        local = jid.partition("@")[0]
        return local if sum(other.partition("@")[0] == local for other in self._peer_jids) == 1 else jid
