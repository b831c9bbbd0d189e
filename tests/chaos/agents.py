"""The attacked agents."""

from __future__ import annotations

import gc

from spade_coreason import AgentDefinition, AgentRequest, Files, ResponseHandler, SessionHandle
from spade_coreason.exceptions import FetchError

_MAX_BYTES = 1_000_000
_TIMEOUT_S = 5.0
COLLECT = "collect what is in cycles"
"""A message after which the platform has no garbage: the frames of streams that were cut hold large texts until then."""
LARGE_CHARACTERS = 8 * 2**20


class Echo:
    """Repeats each message in one block, and fetches the files that it links to."""

    def __init__(self, manifest: AgentDefinition, files: Files) -> None:
        self.manifest = manifest
        self._files = files

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        for attachment in request.payload.get("attachments", ()):
            try:
                await self._files.fetch(attachment["url"], max_bytes=_MAX_BYTES, timeout_s=_TIMEOUT_S, allow_private=True)
            except FetchError as error:
                await response.markdown(error.problem)
        if request.payload["query"] == COLLECT:
            gc.collect()
        await response.markdown(request.payload["query"])


class Large:
    """Answers each message with a text of 8 MiB."""

    manifest = AgentDefinition.simple("large")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("g" * LARGE_CHARACTERS)
