"""A support desk that answers from a handbook, and hands over to the staff what the handbook does not say."""

import re
from pathlib import Path

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Knowledge, Response, Session, command

HANDBOOK = Path(__file__).parent / "handbook"
OPEN = "open questions"


class SupportDesk:
    """Answers the customers of a bicycle shop from its handbook."""

    def __init__(
        self, manifest: AgentDefinition, knowledge: Knowledge, memory: AgentInteractionMemory, staff: tuple[str, ...] = ()
    ) -> None:
        self.manifest = manifest
        self.knowledge, self.memory = knowledge, memory
        self.staff = staff
        self.models = {f"models/{page.name}": page.stem for page in sorted(HANDBOOK.glob("models/*.md"))}

    async def startup(self) -> None:
        for page in HANDBOOK.rglob("*.md"):
            await self.knowledge.add_file(page, str(page.relative_to(HANDBOOK)))

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        question = request.payload["query"].strip()
        for word in re.findall(r"\w+", question.lower()):
            if word in self.models.values():
                await session.store("model", word, scope="person")
        if question.lower() in self.models.values():  # the choice of a customer who was asked for the model
            question = await session.get("question", question)
        model = await session.get("model")
        found = await self.knowledge.search(question, threshold=0.6)
        pages = [hit for hit in found if model is None or self.models.get(hit.document, model) == model]
        if not pages:
            await self.hand_over(question, session, response)
        elif model is None and pages[0].document in self.models:
            await session.store("question", question, scope="conversation")
            await response.ask("Which bicycle do you have?", [name.capitalize() for name in self.models.values()])
        else:
            await response.markdown(await self.word(question, pages[0].text, request))
            await response.markdown(f"Source: {pages[0].document}")

    async def word(self, question: str, page: str, request: AgentRequest) -> str:
        """Return the page itself. with_model.py lets a language model put it into words."""
        return page

    async def hand_over(self, question: str, session: Session, response: Response) -> None:
        entry = f"{session.identity.name}: {question}"
        if entry not in await self.memory.aget_information(OPEN):
            await self.memory.aadd_information(OPEN, entry)
        await response.markdown("The handbook does not say. I passed your question on to the staff: ask me again later.")

    @command("open", "the questions that wait for the staff")
    async def open(self, session: Session) -> str:
        if session.identity.id not in self.staff:
            return "This is for the staff."
        questions = await self.memory.aget_information(OPEN)
        return "\n".join(f"{number}. {text}" for number, text in enumerate(questions, 1)) or "No question is open."

    @command("answer", "answer an open question, for all customers", title="title of the new page", text="the answer")
    async def answer(self, session: Session, number: int, title: str, text: str) -> str:
        questions = await self.memory.aget_information(OPEN)
        if session.identity.id not in self.staff or not 0 < number <= len(questions):
            return "There is no such question, or you are not of the staff."
        await self.knowledge.add(f"# {title}\n\n{text}", title, is_markdown=True)
        await self.memory.aremove_information(OPEN, questions[number - 1])
        return f'Customers get it from now on. Its source is "{title}".'
