"""A moderator that asks several agents in turn. Each receives the contributions of the others before it."""

from __future__ import annotations

from spade_coreason import AgentDefinition, AgentRequest, PeerError, Peers, ResponseHandler, SessionHandle
from spade_coreason.domain.texts.translation import translate, translate_plural


class RoundTableAgent:
    """Lets other agents discuss what you ask: each in turn hears what was said before, for a number of turns and no more.

    In a chat room with these agents it puts the questions. Each contribution is shown with the name of its speaker.
    """

    def __init__(
        self, manifest: AgentDefinition, peers: Peers, ask: list[str], turns: int = 6, timeout_s: float = 30.0
    ) -> None:
        if isinstance(ask, str) or len(ask) < 2:
            raise ValueError(
                'the option "ask" must be a list of two agents or more, such as ["poet@localhost", "critic@localhost"]'
            )
        if isinstance(turns, bool) or turns < 1:
            raise ValueError('the option "turns" must be at least 1: the number of contributions of all agents together')
        self._manifest = manifest
        self._peers = peers
        self._peer_jids = ask
        self._turns = turns
        self._timeout_s = timeout_s

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Ask one agent after the other. One that is offline, refuses or fails is skipped from then on."""
        topic = str(request.payload.get("query") or "").strip()
        if not topic:
            await response.markdown(translate("What shall we talk about?"))
            return
        present = list(self._peer_jids)
        contributions: list[str] = []
        for _ in range(self._turns):
            if not present:
                break
            speaker = present.pop(0)
            await response.thought(translate("{name} has the floor…", name=_name(speaker)))
            contribution = await self._ask_speaker(speaker, request, "\n\n".join([topic, *contributions]))
            if contribution is None:
                await response.markdown(translate("**{name}** is not here.", name=_name(speaker)))
                continue
            present.append(speaker)
            contributions.append(f"{_name(speaker)}: {contribution}")
            await response.markdown(f"**{_name(speaker)}**: {contribution}")
        number = len(contributions)
        await response.markdown(
            translate_plural(
                "That was our round table: {number} contribution.", "That was our round table: {number} contributions.", number
            )
        )

    async def _ask_speaker(self, speaker: str, request: AgentRequest, discussion: str) -> str | None:
        try:
            answer = await self._peers.ask(speaker, request.create_child({"query": discussion}), self._timeout_s)
        except PeerError:
            return None
        return answer.text or translate("(nothing)")


def _name(jid: str) -> str:
    return jid.partition("@")[0]
