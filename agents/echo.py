"""An agent that repeats each message, word by word."""

from __future__ import annotations

import asyncio
import re

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.texts.translation import translate

WORDS = re.compile(r"\S+\s*")


class EchoAgent:
    """Repeats what you say, word by word."""

    examples = ("Every word of this comes back by itself",)

    def __init__(self, manifest: AgentDefinition, delay_s: float = 0.0) -> None:
        if not isinstance(delay_s, int | float) or not delay_s >= 0:
            raise ValueError(f"delay_s must be a number of seconds, not {delay_s!r}")
        self._manifest = manifest
        self._delay_s = delay_s

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Stream the words of the request, `delay_s` seconds apart."""
        await response.thought(translate("Processing request…"))
        stream = await response.create_stream(title="Echo")
        for word in WORDS.findall(str(request.payload.get("query") or "")):
            await stream.write(word)
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
        await stream.close()
