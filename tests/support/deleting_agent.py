"""An agent that asks before it deletes two things, for tests of answers that come at the wrong time."""

from __future__ import annotations

from spade_coreason import AgentDefinition, AgentRequest, Response, Session

UNCLEAR = "I cannot tell if you mean my question"


class DeletingAgent:
    """An agent that asks about A and then about B for `delete`, and repeats all else."""

    manifest = AgentDefinition.simple("deleting")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        if query != "delete":
            await response.markdown(f"request: {query}")
            return
        answers = [(await response.ask_person(f"Delete {name}?", choices=["yes", "no"])).text for name in "AB"]
        await response.markdown(f"deleted: {answers}")
