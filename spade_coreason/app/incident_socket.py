"""The incident socket: an operator reads the texts of an incident through the running platform.

Such a read is an entry in the audit trail, and only the process that owns the database can write it. The socket is in the data
directory; a process that may read the directory may use it. A connection is one request and one reply, both a JSON object.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..contracts import AuditEntry
from ..exceptions import CoReasonError, StoreError
from ..storage import AgentRepository, Database, Incident, load_incident_with_texts
from .unix_socket import serve_json_socket, socket_address

INCIDENT_SOCKET = "incidents.sock"


async def read_incident_texts(database: Database, agent: str, row: int, number: str) -> Incident:
    """Return an incident with the texts of its exceptions, once the audit trail of its agent has an entry of that.

    Raise StoreError if the entry cannot be stored, or the incident was deleted. The caller owns the database.
    """
    found = await load_incident_with_texts(database, agent, row)
    if found is None or found.number != number:
        raise StoreError(f"incident {number} was deleted a moment ago")
    entry = AuditEntry(actor="operator", action="incident.message", resource=f"incident {number}", outcome="success")
    await AgentRepository(database, agent).audit_trail.append(entry, found.person)
    return found


@asynccontextmanager
async def serve_incident_socket(data_dir: Path, database: Database) -> AsyncIterator[None]:
    """Serve requests for the texts of incidents at the socket in `data_dir` (0600), until the block ends."""

    async def handle(request: dict[str, Any], writer: asyncio.StreamWriter) -> dict[str, Any]:
        try:
            found = await read_incident_texts(database, request["agent"], request["row"], request["number"])
        except StoreError as error:
            return {"problem": str(error)}
        return {"texts": [error.text for error in found.chain]}

    async with serve_json_socket(data_dir, INCIDENT_SOCKET, handle, "the message of an incident cannot be read"):
        yield


async def request_incident_texts(data_dir: Path, incident: Incident) -> Incident:
    """Return an incident with the texts of its exceptions, through the platform that runs on `data_dir`.

    Raise CoReasonError if the platform does not accept the request, or ends before its reply.
    """
    try:
        with socket_address(data_dir, INCIDENT_SOCKET) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        try:
            request = {"agent": incident.agent, "row": incident.row, "number": incident.number}
            writer.write(json.dumps(request).encode())
            writer.write_eof()
            reply = json.loads(await reader.read())
        finally:
            writer.close()
    except (OSError, ValueError) as error:
        problem = "is in use, but its platform does not answer: it is starting, stopping or has an older version; try again"
        raise CoReasonError(f"{data_dir} {problem}") from error
    if "texts" not in reply:
        raise CoReasonError(str(reply.get("problem")))
    return incident._replace(
        chain=tuple(replace(error, text=text) for error, text in zip(incident.chain, reply["texts"], strict=True))
    )
