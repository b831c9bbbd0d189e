"""The knowledge socket: other processes change the knowledge of agents through the running platform.

One process owns the database, so a process with a new document sends it to that one. The socket is in the data directory; a
process that may read the directory may use it. A connection is one request: the client sends a JSON object and closes its
side. The reply is lines of JSON: any number of progress reports, then the result or the problem.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ..exceptions import CoReasonError, KnowledgeError
from ..memory import Embedder, Knowledge, ProgressCallback
from ..storage import KnowledgeRepository
from .unix_socket import SocketLimits, serve_json_socket, socket_address, write_progress

KNOWLEDGE_SOCKET = "knowledge.sock"

LIMITS = SocketLimits(request_bytes=80 * 1024 * 1024, connections=4)
"""The largest file of a document has 64 MiB, and JSON escapes some of its characters."""


@asynccontextmanager
async def serve_knowledge_socket(data_dir: Path, knowledge_by_agent: Mapping[str, Knowledge]) -> AsyncIterator[None]:
    """Serve requests for the knowledge of agents (by bare JID) at the socket in `data_dir` (0600), until the block ends."""

    async def handle(request: dict[str, Any], writer: asyncio.StreamWriter) -> dict[str, Any]:
        return await _handle_request(request, knowledge_by_agent, writer)

    # A stop cancels running requests. A repeated request continues where the cancelled one stopped.
    async with serve_json_socket(data_dir, KNOWLEDGE_SOCKET, handle, "a change of the knowledge of an agent failed", LIMITS):
        yield


async def _handle_request(
    request: dict[str, Any], knowledge_by_agent: Mapping[str, Knowledge], writer: asyncio.StreamWriter
) -> dict[str, Any]:
    def progress(done: int, total: int) -> None:
        write_progress(writer, {"done": done, "total": total})

    knowledge = knowledge_by_agent.get(request.pop("agent"))
    if knowledge is None:
        return {"problem": "the running platform does not run this agent; name one of its agents, or stop the platform first"}
    try:
        match request.pop("do"):
            case "add":
                return {"result": await knowledge.add(**request, progress=progress)}
            case "remove":
                return {"result": await knowledge.remove(**request)}
            case "reindex":
                return {"result": await knowledge.reindex(progress)}
            case action:
                return {"problem": f"the running platform has another version and cannot {action}; restart it"}
    except CoReasonError as error:
        return {"problem": str(error), "is_of_document": isinstance(error, KnowledgeError)}


class RemoteKnowledge(Knowledge):
    """The knowledge of an agent whose platform runs in another process.

    Reads use `repository`, which is opened for reading. Changes go through the socket of the platform. They raise
    CoReasonError if the platform does not accept the request, or ends before its reply.
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
        """Add a document through the platform; see `Knowledge.add`."""
        owner = {"person": person, "conversation": conversation}
        return str(await self._send_request(progress, do="add", text=text, name=name, is_markdown=is_markdown, **owner))

    async def remove(self, name: str, *, person: str | None = None, conversation: str | None = None) -> bool:
        """Remove a document through the platform; see `Knowledge.remove`."""
        return bool(await self._send_request(None, do="remove", name=name, person=person, conversation=conversation))

    async def reindex(self, progress: ProgressCallback | None = None) -> int:
        """Compute missing and outdated vectors through the platform; see `Knowledge.reindex`."""
        return int(await self._send_request(progress, do="reindex"))

    async def _send_request(self, progress: ProgressCallback | None, **request: Any) -> Any:
        with socket_address(self._data_dir, KNOWLEDGE_SOCKET) as address:
            try:
                reader, writer = await asyncio.open_unix_connection(address)
            except OSError as error:
                problem = "is in use, but its platform does not answer: it is starting or stopping; try again"
                raise CoReasonError(f"{self._data_dir} {problem}") from error
        try:
            writer.write(_encode_request({"agent": self.repository.agent, **request}))
            writer.write_eof()
            with suppress(ConnectionError):
                async for line in reader:
                    reply = json.loads(line)
                    if "result" in reply:
                        return reply["result"]
                    if "problem" in reply:
                        raise (KnowledgeError if reply.get("is_of_document") else CoReasonError)(reply["problem"])
                    if progress is not None:
                        progress(reply["done"], reply["total"])
        finally:
            writer.close()
        raise CoReasonError(f"the platform on {self._data_dir} has ended; run the same command again to continue")


def _encode_request(request: dict[str, Any]) -> bytes:
    data = json.dumps(request, ensure_ascii=False).encode(errors="surrogatepass")
    if len(data) > LIMITS.request_bytes:
        raise KnowledgeError(f"the text has more than {LIMITS.request_bytes:,} bytes as JSON, the limit; split it")
    return data
