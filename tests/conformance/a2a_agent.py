"""The agent that the A2A kit expects: the beginning of a message's id says what it does."""

from __future__ import annotations

import asyncio

from spade_coreason import AgentDefinition, AgentRequest, Response, Session

_STREAMING_S = 4.0


class KitAgent:
    """It does what the scenarios of the kit say (`scenarios/*.feature` there)."""

    manifest = AgentDefinition.simple("kit", description="Answers the A2A conformance kit.", version="1.0.0")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer one message."""
        name = str(request.metadata["message_id"]).removeprefix("tck-")
        match name:
            case _ if name.startswith("artifact-text"):
                await response.markdown("Generated text content")
            case _ if name.startswith("artifact-file"):
                await response.markdown("https://example.com/output.txt")
            case _ if name.startswith("artifact-data"):
                await response.data({"key": "value", "count": 42})
            case _ if name.startswith("input-required"):
                while (await response.ask_person("What else?")).text.startswith("TCK history message"):
                    pass
            case _ if name.startswith("stream-artifact-chunked"):
                stream = await response.create_stream()
                for chunk in ("chunk-1 ", "chunk-2"):
                    await stream.write(chunk)
                await stream.close()
            case _ if name.startswith("stream-artifact-file"):
                await response.markdown("https://example.com/output.txt")
            case _ if name.startswith("stream-artifact-text"):
                await response.markdown("Streamed text content")
            case _ if name.startswith("test-resubscribe"):
                await response.thought("It takes a while.")
                await asyncio.sleep(_STREAMING_S)
            case _ if name.startswith("stream"):
                await response.markdown("Stream hello from TCK")
            case _:
                await response.markdown("Hello from TCK")
