"""Changing what agents know while their platform runs: whoever may read its data directory asks it to, at a socket there.

One process owns a database, so another that has a document gives it to that one. A connection is one request, a JSON object up
to its end; the answer is lines of JSON: how far it is, and then what came of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ..exceptions import CoReasonError, KnowledgeError
from ..memory import Embedder, Knowledge, ProgressCallback
from ..storage import KnowledgeRepository
from .unix_socket import serve_socket, socket_address

log = logging.getLogger(__name__)

KNOWLEDGE_SOCKET = "knowledge.sock"


@asynccontextmanager
async def serve_knowledge_socket(data_dir: Path, knowledge_by_agent: Mapping[str, Knowledge]) -> AsyncIterator[None]:
    """Does what is asked for at the socket in `data_dir` (0600), of the knowledge of each agent, for the time of the block."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = await _handle_request(json.loads(await reader.read()), knowledge_by_agent, writer)
        except ConnectionError:
            raise
        except Exception:  # what a command of another version asks, too
            log.exception("what was asked of what agents know could not be done")
            said = {"problem": "the platform that runs could not do this; its log says why"}
        writer.write(f"{json.dumps(said)}\n".encode())

    async with serve_socket(data_dir, KNOWLEDGE_SOCKET, handle):  # asked again, what was broken off goes on where it was
        yield


async def _handle_request(
    request: dict[str, Any], knowledge_by_agent: Mapping[str, Knowledge], writer: asyncio.StreamWriter
) -> dict[str, Any]:
    def progress(done: int, total: int) -> None:
        if writer.is_closing():
            raise ConnectionError("whoever asked has gone")
        writer.write(f"{json.dumps({'done': done, 'total': total})}\n".encode())

    knowledge = knowledge_by_agent.get(request.pop("agent"))
    if knowledge is None:
        return {"problem": "the platform that runs does not run this agent; name one of its own, or stop it first"}
    try:
        match request.pop("do"):
            case "add":
                return {"result": await knowledge.add(**request, progress=progress)}
            case "remove":
                return {"result": await knowledge.remove(**request)}
            case "reindex":
                return {"result": await knowledge.reindex(progress)}
            case other:
                return {"problem": f"the platform that runs cannot {other}; it is of another version: start it anew"}
    except CoReasonError as error:
        return {"problem": str(error), "is_of_document": isinstance(error, KnowledgeError)}


class RemoteKnowledge(Knowledge):
    """The knowledge of an agent of a platform that runs in another process: read here, changed there.

    `repository` is opened to read. CoReasonError where the platform ends before it has answered.
    """

    def __init__(self, repository: KnowledgeRepository, embedder: Embedder | None, data_dir: Path) -> None:
        super().__init__(repository, embedder)
        self._data_dir = data_dir

    async def add(
        self,
        text: str,
        name: str,
        *,
        person: str | None = None,
        conversation: str | None = None,
        is_markdown: bool = False,
        progress: ProgressCallback | None = None,
    ) -> str:
        """As `Knowledge.add`."""
        whose = {"person": person, "conversation": conversation}
        return str(await self._send_request(progress, do="add", text=text, name=name, is_markdown=is_markdown, **whose))

    async def remove(self, name: str, *, person: str | None = None, conversation: str | None = None) -> bool:
        """As `Knowledge.remove`."""
        return bool(await self._send_request(None, do="remove", name=name, person=person, conversation=conversation))

    async def reindex(self, progress: ProgressCallback | None = None) -> int:
        """As `Knowledge.reindex`."""
        return int(await self._send_request(progress, do="reindex"))

    async def _send_request(self, progress: ProgressCallback | None, **request: Any) -> Any:
        with socket_address(self._data_dir, KNOWLEDGE_SOCKET) as address:
            try:
                reader, writer = await asyncio.open_unix_connection(address)
            except OSError as error:
                problem = "is in use, and nobody there takes it: the platform is just starting or stopping; try again"
                raise CoReasonError(f"{self._data_dir} {problem}") from error
        try:
            writer.write(json.dumps({"agent": self.repository.agent, **request}).encode())
            writer.write_eof()
            with suppress(ConnectionError):
                async for line in reader:
                    said = json.loads(line)
                    if "result" in said:
                        return said["result"]
                    if "problem" in said:
                        raise (KnowledgeError if said.get("is_of_document") else CoReasonError)(said["problem"])
                    if progress is not None:
                        progress(said["done"], said["total"])
        finally:
            writer.close()
        raise CoReasonError(f"the platform on {self._data_dir} ended meanwhile; the same command again goes on where it was")
