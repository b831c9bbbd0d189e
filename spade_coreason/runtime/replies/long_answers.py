"""Files in replies to people: a text that is too long for a chat is uploaded, and a link to an upload is shown as the file."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

from ...contracts import DataBlock
from ...domain.texts.translation import translate
from ...exceptions import UploadError
from ..channels import ReplyEncoder
from ..files import Files

log = logging.getLogger(__name__)

_UPLOAD_TIMEOUT_S = 60.0
# Wait before the next upload to a server that has refused one.
_RETRY_AFTER_S = 600.0
_MAX_LINKS = 10


class RenderedAnswer(NamedTuple):
    """The text that a person reads instead of the whole one, and the links to its files. `text` is None for no change."""

    text: str | None = None
    links: tuple[str, ...] = ()


UNCHANGED = RenderedAnswer()


class LongAnswers:
    """The file uploads for long texts of one agent. `over_bytes` is the longest text that is not a file, 0 for any length.

    If the server stores no files, a long text is sent as several messages.
    """

    def __init__(self, agent: str, files: Files, over_bytes: int = 0) -> None:
        self._agent = agent
        self.files = files
        self.over_bytes = over_bytes
        self._next_attempt_s = 0.0

    async def render_markdown(self, content: str, encoder: ReplyEncoder) -> RenderedAnswer:
        """Upload a Markdown text if it is too long, or show it as a file if it is the link to an upload."""
        if self.files.has_uploaded(link := content.strip()):
            return RenderedAnswer(None, (link,))
        return await self._upload_and_preview(content, encoder, is_markdown=True) if self._is_long(content) else UNCHANGED

    async def render_data(self, block: DataBlock, encoder: ReplyEncoder) -> RenderedAnswer:
        """Upload a data block if it is too long, and find the links to uploads among its values."""
        text = encoder.render_block(block) if self.over_bytes else ""
        if self._is_long(text):
            return await self._upload_and_preview(text, encoder, is_markdown=False)
        links = dict.fromkeys(text for text in _texts_in(block.data) if self.files.has_uploaded(text))
        return RenderedAnswer(None, tuple(links)[:_MAX_LINKS])

    def _is_long(self, text: str) -> bool:
        limit = self.over_bytes
        return 0 < limit < len(text) * 4 and limit < len(text.encode("utf-8", "replace"))

    async def _upload_and_preview(self, text: str, encoder: ReplyEncoder, *, is_markdown: bool) -> RenderedAnswer:
        if time.monotonic() < self._next_attempt_s:
            return UNCHANGED
        name, data = f"answer.{'md' if is_markdown else 'txt'}", text.encode("utf-8", "replace")
        try:
            async with asyncio.timeout(_UPLOAD_TIMEOUT_S):
                link = await self.files.upload(name, data)
        except (UploadError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                problem = f"an upload took longer than {_UPLOAD_TIMEOUT_S:g} s"
                self.files.report_failure(
                    UploadError(name, problem, "check whether the upload service of the server is overloaded")
                )
            self._next_attempt_s = time.monotonic() + _RETRY_AFTER_S
            log.info("%s: sending an answer of %d bytes in several messages: %s", self._agent, len(data), error)
            return UNCHANGED
        preview = encoder.preview(text, is_markdown=is_markdown)
        note = translate("The whole answer ({size} kB) is in this file:", size=round(len(data) / 1000))
        return RenderedAnswer(f"{preview}\n\n{note}", (link,))


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in inner for text in _texts_in(item)]
