"""Files among what an agent says to people: an answer too long for a chat becomes one, and a link to one is shown as it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..codec import preview, render_block, style_markdown
from ..contracts import DataBlock
from ..exceptions import UploadError
from .files import Files

log = logging.getLogger(__name__)

_UPLOAD_TIMEOUT_S = 60.0
# So long nobody asks a server again that keeps no files.
_RETRY_AFTER_S = 600.0
_MAX_LINKS = 10


class RenderedAnswer(NamedTuple):
    """What a person reads, None for all of it, and the links to files that belong to it."""

    text: str | None = None
    links: tuple[str, ...] = ()


UNCHANGED = RenderedAnswer()


class LongAnswers:
    """Makes fit what one agent says; `over_bytes` is the longest text that is not a file, 0 for any length.

    Where the server keeps no files, a text stays as it is, and goes in several messages.
    """

    def __init__(self, agent: str, files: Files | None = None, over_bytes: int = 0) -> None:
        self._agent = agent
        self._files = files
        self._over_bytes = over_bytes
        self._next_attempt_s = 0.0

    async def render_markdown(self, content: str) -> RenderedAnswer:
        """Of a Markdown text."""
        if self._files is None:
            return UNCHANGED
        if self._files.has_uploaded(link := content.strip()):
            return RenderedAnswer(None, (link,))
        return await self._upload_and_preview(content, "answer.md", style_markdown) if self._is_long(content) else UNCHANGED

    async def render_data(self, block: DataBlock) -> RenderedAnswer:
        """Of a data block."""
        if self._files is None:
            return UNCHANGED
        text = render_block(block) if self._over_bytes else ""
        if self._is_long(text):
            return await self._upload_and_preview(text, "answer.txt", lambda text: text)
        links = dict.fromkeys(text for text in _texts_in(block.data) if self._files.has_uploaded(text))
        return RenderedAnswer(None, tuple(links)[:_MAX_LINKS])

    def _is_long(self, text: str) -> bool:
        limit = self._over_bytes
        return 0 < limit < len(text) * 4 and limit < len(text.encode("utf-8", "replace"))

    async def _upload_and_preview(self, text: str, name: str, render: Callable[[str], str]) -> RenderedAnswer:
        if self._files is None or time.monotonic() < self._next_attempt_s:
            return UNCHANGED
        data = text.encode("utf-8", "replace")
        try:
            async with asyncio.timeout(_UPLOAD_TIMEOUT_S):
                link = await self._files.upload(name, data)
        except (UploadError, TimeoutError) as error:
            self._next_attempt_s = time.monotonic() + _RETRY_AFTER_S
            log.info("%s: an answer of %d bytes goes in several messages: %s", self._agent, len(data), error)
            return UNCHANGED
        return RenderedAnswer(
            f"{render(preview(text))}\n\nThe whole answer ({len(data) / 1000:,.0f} kB) is in this file:", (link,)
        )


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in inner for text in _texts_in(item)]
