"""Files among what an agent says to people: an answer too long for a chat becomes one, and a link to one is shown as it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..codec import block_text, styled, summary
from ..contracts import DataBlock
from ..exceptions import UploadError
from .files import Files

log = logging.getLogger(__name__)

_UPLOAD_WITHIN_S = 60.0
# So long nobody asks a server again that keeps no files.
_AGAIN_AFTER_S = 600.0
_MOST_LINKS = 10


class Fitting(NamedTuple):
    """What a person reads, None for all of it, and the links to files that belong to it."""

    text: str | None = None
    links: tuple[str, ...] = ()


AS_IT_IS = Fitting()


class Filing:
    """Makes fit what one agent says; `over_bytes` is the longest text that is not a file, 0 for any length.

    Where the server keeps no files, a text stays as it is, and goes in several messages.
    """

    def __init__(self, agent: str, files: Files | None = None, over_bytes: int = 0) -> None:
        self._agent = agent
        self._files = files
        self._over_bytes = over_bytes
        self._not_before = 0.0

    async def markdown(self, content: str) -> Fitting:
        """Of a Markdown text."""
        if self._files is None:
            return AS_IT_IS
        if self._files.has_kept(link := content.strip()):
            return Fitting(None, (link,))
        return await self._shortened(content, "answer.md", styled) if self._is_long(content) else AS_IT_IS

    async def data(self, block: DataBlock) -> Fitting:
        """Of a data block."""
        if self._files is None:
            return AS_IT_IS
        text = block_text(block) if self._over_bytes else ""
        if self._is_long(text):
            return await self._shortened(text, "answer.txt", lambda text: text)
        links = dict.fromkeys(text for text in _texts_in(block.data) if self._files.has_kept(text))
        return Fitting(None, tuple(links)[:_MOST_LINKS])

    def _is_long(self, text: str) -> bool:
        limit = self._over_bytes
        return 0 < limit < len(text) * 4 and limit < len(text.encode("utf-8", "replace"))

    async def _shortened(self, text: str, name: str, shown: Callable[[str], str]) -> Fitting:
        if self._files is None or time.monotonic() < self._not_before:
            return AS_IT_IS
        data = text.encode("utf-8", "replace")
        try:
            async with asyncio.timeout(_UPLOAD_WITHIN_S):
                link = await self._files.upload(name, data)
        except (UploadError, TimeoutError) as error:
            self._not_before = time.monotonic() + _AGAIN_AFTER_S
            log.info("%s: an answer of %d bytes goes in several messages: %s", self._agent, len(data), error)
            return AS_IT_IS
        return Fitting(f"{shown(summary(text))}\n\nThe whole answer ({len(data) / 1000:,.0f} kB) is in this file:", (link,))


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in inner for text in _texts_in(item)]
