"""The support desk with a language model, which puts the pages of the handbook into words."""

from support_desk import SupportDesk

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Knowledge, PeerError, Peers
from spade_coreason.llm import LLMAgent


class Writer(LLMAgent):
    """Words an answer."""

    default_prompt = "You answer a customer of a bicycle shop in one or two sentences, only from the handbook that you get."


class WritingDesk(SupportDesk):
    """Answers the customers of a bicycle shop from its handbook, in its own words."""

    def __init__(
        self,
        manifest: AgentDefinition,
        knowledge: Knowledge,
        memory: AgentInteractionMemory,
        peers: Peers,
        staff: tuple[str, ...] = (),
        writer: str = "writer@localhost",
    ) -> None:
        super().__init__(manifest, knowledge, memory, staff)
        self.peers, self.writer = peers, writer

    async def word(self, question: str, page: str, request: AgentRequest) -> str:
        """Ask the writer. If it fails, the page itself is the answer."""
        try:
            return (await self.peers.ask(self.writer, request.create_child({"query": question, "handbook": page}))).text
        except PeerError:
            return page
