"""The example agent of the Agent Behavior Protocols, unchanged except for its imports."""

import asyncio

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle


class EchoAgent:
    """A simple agent that strictly implements AgentInterface."""

    def __init__(self, manifest: AgentDefinition):
        self._manifest = manifest

    @property
    def manifest(self) -> AgentDefinition:
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        # Emit a "thinking" event
        await response.thought("Processing request...")

        # (Optional) Fetch context
        # history = await session.history(limit=5)

        # Create a stream for the output
        stream = await response.create_stream(title="Echo Response")

        try:
            # Simulate streaming chunks
            words = str(request.payload.get("query", "")).split()
            for word in words:
                await stream.write(word + " ")
                await asyncio.sleep(0.1)

            # Finalize the stream
            await stream.close()

        except Exception as e:  # noqa: BLE001 - the example of the specification, as it is there
            await stream.abort(str(e))
            await response.error("Failed to stream response")
