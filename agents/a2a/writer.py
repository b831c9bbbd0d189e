"""The reply to a person or a peer, written from the events of a remote agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from spade_coreason import Files, Response
from spade_coreason.contracts.authoring import Stream
from spade_coreason.domain.texts.json_text import dump_json
from spade_coreason.domain.texts.translation import N_, translate
from spade_coreason.exceptions import UploadError

from .errors import UnusableAnswerError
from .reading import clean_line, join_texts, make_link, read_data

_MAX_CHARACTERS = 4_000_000
"""The most characters of the texts of one answer."""
_MAX_STORED_BYTES = 700_000
"""The most bytes of an answer that is stored as a durable step; a longer one is not recorded if the turn runs again."""
_MAX_ARTIFACTS = 1000
_MAX_OUTPUTS = 1000
"""The most messages of an answer: texts, streams, data and files."""
_MAX_THOUGHTS = 1000
"""The most thoughts of an answer that are shown."""
_MAX_ID_CHARACTERS = 200
_ANEW = N_("the remote agent has written this anew")
_END_AFTER_S = 1.0
"""Seconds until the stream of a complete artifact ends. A question with the same text that comes earlier takes its place."""


@dataclass(eq=False)
class _ShownArtifact:
    """The part of an artifact that is in the reply: the pieces of its text, and the number of its other parts."""

    earlier_length: int = 0
    """The number of characters that earlier rounds of the exchange have written."""
    pieces: list[str] = field(default_factory=list)
    part_count: int = 0
    stream: Stream | None = None
    first_of_stream: int = 0
    """The number of the first piece in the open stream."""
    output: dict[str, Any] = field(default_factory=dict)
    """The stored output of the open stream."""

    @property
    def length(self) -> int:
        """The number of characters that are written."""
        return self.earlier_length + sum(map(len, self.pieces))


@dataclass(eq=False)
class ReplyWriter:
    """Writes the texts, data, files and thoughts of a remote agent into a response, each once.

    `files` stores files that come as bytes; without it they are named only.
    """

    response: Response
    files: Files | None
    _shown: dict[str, _ShownArtifact] = field(default_factory=dict)
    _stored: list[dict[str, Any]] = field(default_factory=list)
    _complete: _ShownArtifact | None = None
    """The last artifact, if it is complete and its stream is still open, because it may be a question."""
    _ending: asyncio.Task[None] | None = None
    """Ends this stream soon."""
    _last_thought: str = ""
    _thought_count: int = 0
    _character_count: int = 0

    def skip(self, written: Mapping[str, tuple[int, int]]) -> None:
        """Leave out what an earlier round has written: by artifact the numbers of characters, and of other parts."""
        self._shown = {name: _ShownArtifact(length, part_count=count) for name, (length, count) in written.items()}

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """The numbers of what is written, for `skip`."""
        return {name: (shown.length, shown.part_count) for name, shown in self._shown.items()}

    @property
    def outputs(self) -> list[dict[str, Any]] | None:
        """The texts and data that were written, as JSON; None if they are too long to be stored."""
        return self._stored if len(dump_json(self._stored).encode()) <= _MAX_STORED_BYTES else None

    async def add_artifact(self, artifact: Any, *, append: bool = False, is_last: bool = False) -> None:
        """Write an artifact, or if `append` a further piece of it. What of it is written already is left out."""
        await self._end_complete()
        shown = self._shown.setdefault(artifact.artifact_id[:_MAX_ID_CHARACTERS], _ShownArtifact())
        if len(self._shown) > _MAX_ARTIFACTS:
            raise UnusableAnswerError(translate("its answer has more than {limit} artifacts", limit=f"{_MAX_ARTIFACTS:,}"))
        text = join_texts(artifact.parts)
        if not append:
            length = shown.length
            if len(text) >= length and text[shown.earlier_length : length] == "".join(shown.pieces):
                text = text[length:]
            else:  # the agent has written it anew
                if shown.stream is not None:
                    await shown.stream.abort(_ANEW)
                    shown.stream = None
                shown.earlier_length, shown.pieces = 0, []
        if text:
            await self._write(shown, artifact.name, text)
        others = [part for part in artifact.parts if part.WhichOneof("content") not in ("text", None)]
        for part in others if append else others[shown.part_count :]:
            shown.part_count += 1
            await self._add_part(part, artifact.name)
        if is_last and others:
            await self._end(shown)
        elif is_last:
            self._complete, self._ending = shown, asyncio.create_task(self._end_later(shown))

    async def follow_task(self, artifacts: Iterable[Any], *, is_over: bool) -> None:
        """Write the artifacts of a whole task. `is_over`: nothing is added to them.

        An open stream whose artifact is none of them was written anew. It goes on with a new artifact that begins with its
        text. Otherwise it is taken back: the text of a task that is over replaces it.
        """
        await self._end_complete()
        listed = {artifact.artifact_id[:_MAX_ID_CHARACTERS]: artifact for artifact in artifacts}
        new = {name: join_texts(artifact.parts) for name, artifact in listed.items() if name not in self._shown}
        for name, shown in list(self._shown.items()):
            if shown.stream is None or name in listed:
                continue
            del self._shown[name]
            text = "".join(shown.pieces)
            heir = next((other for other, whole in new.items() if whole.startswith(text) and not shown.earlier_length), None)
            goes_on = heir is not None
            if heir is None and is_over:
                heir = next((other for other, whole in new.items() if whole), None)
            if heir is not None:
                self._shown[heir], whole = shown, new.pop(heir)
            else:
                whole = ""
            if not goes_on:
                self._count(whole)
                shown.output["text"], shown.pieces, shown.earlier_length, shown.part_count = whole, [whole], 0, 0
                stream, shown.stream = shown.stream, None
                await stream.replace(whole, _ANEW)
        for artifact in listed.values():
            await self.add_artifact(artifact)

    async def add_parts(self, parts: Iterable[Any]) -> None:
        """Write the parts of a message of the agent: its texts as one, then the others."""
        await self._end_complete()
        listed = list(parts)
        text = join_texts(listed)
        if text.strip() and text.strip() not in [str(one.get("text", "")).strip() for one in self._stored]:
            self._count(text)
            self._store({"text": text})
            await self.response.markdown(text)
        for part in listed:
            if part.WhichOneof("content") not in ("text", None):
                await self._add_part(part, "")

    async def withdraw(self, question: str) -> None:
        """Take back the text of an open stream that is the question which follows."""
        self._take_complete()
        for shown in self._shown.values():
            if shown.stream is not None and shown.length and "".join(shown.pieces).strip() == question.strip():
                shown.output["text"] = ""
                stream, shown.stream = shown.stream, None
                await stream.replace("", "the remote agent asks this")

    async def add_thought(self, text: str) -> None:
        """Write a thought, unless it is the one before, or there were too many."""
        await self._end_complete()
        line = clean_line(text, 1000)
        if line and line != self._last_thought and self._thought_count < _MAX_THOUGHTS:
            self._last_thought, self._thought_count = line, self._thought_count + 1
            await self.response.thought(line)

    async def close(self) -> None:
        """End all streams. They are stored from then on."""
        self._take_complete()
        for shown in self._shown.values():
            await self._end(shown)

    async def drop(self, reason: str) -> None:
        """End all streams as incomplete, and forget what was written: another answer follows."""
        self._take_complete()
        for shown in self._shown.values():
            if shown.stream is not None:
                await shown.stream.abort(reason)
        self._shown.clear()

    async def _write(self, shown: _ShownArtifact, title: str, text: str) -> None:
        self._count(text)
        if shown.stream is None:
            shown.first_of_stream, shown.output = len(shown.pieces), {"text": ""}
            self._store(shown.output)
            shown.stream = await self.response.create_stream(clean_line(title, 100) or None)
        await shown.stream.write(text)
        shown.pieces.append(text)

    async def _end(self, shown: _ShownArtifact) -> None:
        if shown.stream is not None:
            shown.output["text"] = "".join(shown.pieces[shown.first_of_stream :])
            await shown.stream.close()
            shown.stream = None

    async def _end_later(self, shown: _ShownArtifact) -> None:
        await asyncio.sleep(_END_AFTER_S)
        self._complete = self._ending = None
        await self._end(shown)

    async def _end_complete(self) -> None:
        if (shown := self._take_complete()) is not None:
            await self._end(shown)

    def _take_complete(self) -> _ShownArtifact | None:
        if self._ending is not None:
            self._ending.cancel()
        shown, self._complete, self._ending = self._complete, None, None
        return shown

    async def _add_part(self, part: Any, title: str) -> None:
        kind = part.WhichOneof("content")
        self._require_room()  # before a file is uploaded
        if kind == "data":
            data = read_data(MessageToDict(part.data))
            self._count(dump_json(data))
            output: dict[str, Any] = {"data": data, "title": clean_line(title, 100) or None}
        elif kind == "url":
            output = {"text": make_link(part.url, part.filename or title) or clean_line(part.url)}
        else:
            output = {"text": await self._upload(part, title)}
        self._store(output)
        await _replay(output, self.response)

    async def _upload(self, part: Any, title: str) -> str:
        """Store a file on our server, and return its link; a text that names the file if that fails."""
        name = part.filename or title or "file"
        try:
            if self.files is None:
                raise UploadError(name, "there is no way to a server that keeps files")
            return await self.files.upload(name, part.raw, part.media_type or None)
        except UploadError as error:
            return translate("(The file {name} was not passed on: {problem}.)", name=clean_line(name), problem=error.problem)

    def _store(self, output: dict[str, Any]) -> None:
        self._require_room()
        self._stored.append(output)

    def _require_room(self) -> None:
        if len(self._stored) >= _MAX_OUTPUTS:
            raise UnusableAnswerError(translate("its answer has more than {limit} messages", limit=f"{_MAX_OUTPUTS:,}"))

    def _count(self, text: str) -> None:
        self._character_count += len(text)
        if self._character_count > _MAX_CHARACTERS:
            limit = f"{_MAX_CHARACTERS:,}"
            raise UnusableAnswerError(translate("its answer has more than {limit} characters", limit=limit))


async def replay(outputs: Iterable[Mapping[str, Any]], response: Response) -> None:
    """Write stored outputs again, in a further run of the turn."""
    for output in outputs:
        await _replay(output, response)


async def _replay(output: Mapping[str, Any], response: Response) -> None:
    if "data" in output:
        await response.data(output["data"], output["title"])
    elif output["text"]:
        await response.markdown(output["text"])
