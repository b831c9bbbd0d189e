"""The directory agent of a platform: it tells people and programs which agents they may talk to."""

from __future__ import annotations

from collections.abc import Sequence

from ..contracts import AgentCapability, AgentDefinition, AgentMetadata, AgentRequest, Response, Session
from ..domain.cards import AgentCard, dump_card, dump_state, find_cards
from ..domain.texts.translation import N_, translate, translate_plural
from ..runtime import Peers

_MAX_SHOWN = 50
_DESCRIPTION = N_("Lists the agents of this platform. Ask me who can do something.")
_INPUTS = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "words about the agents to find; without them, all agents are listed"},
        "known": {"type": "string", "description": "the version of the list that the sender has"},
    },
}
_OUTPUTS = {
    "type": "object",
    "properties": {
        "version": {"type": "string"},
        "agents": {"type": "array", "items": {"type": "object"}},
        "states": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["version"],
}


class DirectoryAgent:
    """The directory: an agent that lists the other agents of its platform, each to those who may talk to it.

    A person gets a text, and a program also the cards as data. If a program knows the current version of the list already, it
    gets the state of the agents only.
    """

    def __init__(self, peers: Peers) -> None:
        self._platform = peers.finder.platform
        self._manifest = AgentDefinition(
            metadata=AgentMetadata(name="directory", version="1.0.0", author="spade_coreason"),
            capabilities=[
                AgentCapability(name="list_agents", description=_DESCRIPTION, inputs=_INPUTS, outputs=_OUTPUTS),
            ],
        )

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer with the agents that the sender may talk to, and that fit the query if there is one."""
        query = request.payload.get("query")
        cards = find_cards(self._platform.list_for(session.identity.id))
        is_program = request.metadata.get("channel") in ("program", "door")
        if isinstance(query, str):
            await response.markdown(describe_agents(cards, query))
            cards = find_cards(cards, text=query) or cards
        elif not is_program:
            await response.markdown(describe_agents(cards, ""))
        if is_program:
            version = self._platform.version
            is_known = request.payload.get("known") == version
            listed = {"states": [*map(dump_state, cards)]} if is_known else {"agents": [*map(dump_card, cards)]}
            await response.data({"version": version, **listed}, title=translate("Agents"))
            session.end()  # a program asks every few seconds, without end: max_interactions is for conversations with people


def describe_agents(cards: Sequence[AgentCard], query: str) -> str:
    """Describe for a person the agents that fit a query, or else all of them."""
    if not cards:
        return translate("There is no agent that you may talk to.")
    found = find_cards(cards, text=query) if query.strip() else []
    if found:
        title = translate_plural("I found {number} agent:", "I found {number} agents:", len(found))
    elif query.strip():
        title = translate("I found no agent for that. You may talk to these agents:")
    else:
        title = translate("You may talk to these agents:")
    shown = found or cards
    lines = [_describe_agent(card) for card in shown[:_MAX_SHOWN]]
    if (rest := len(shown) - _MAX_SHOWN) > 0:
        lines.append(translate_plural("- and {number} more; ask for a word", "- and {number} more; ask for a word", rest))
    return "\n".join([title, "", *lines])


def _describe_agent(card: AgentCard) -> str:
    state = "" if card.is_online else f" ({translate('offline')})"
    description = f": {translate(card.description)}" if card.description else ""
    names = ", ".join(capability.name for capability in card.capabilities)
    return f"- {card.name}, {card.jid}{state}{description} [{names}]"
