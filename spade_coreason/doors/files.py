"""The files of callers of doors, and those of agents for people in the page: stored for seven days, behind secret links."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..contracts.times import utc_now
from ..domain.channel_kinds import PAGE_CHANNEL
from ..domain.jid import bare_jid
from ..exceptions import UploadError
from ..runtime import CURRENT_REQUEST, Progress, UploadFile
from ..storage import CallerRepository, NewFile, StoredFile, TooManyFilesError, find_file
from .addresses import group_address
from .agents import DoorAgents
from .caller import Caller
from .errors import HttpError
from .server import DoorRoutes
from .unread import UnreadBytes

FILES_PATH = "/files"
_BUSY_S = 5.0
_PLAIN_TYPES = frozenset({"application/pdf", "application/json", "text/plain", "text/csv", "text/markdown", "application/zip"})
_PLAIN_KINDS = ("image", "audio", "video", "font")
_ACTIVE_TYPES = frozenset({"image/svg+xml"})
_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


def make_file_routes(agents: DoorAgents) -> DoorRoutes:
    """Return the route of the files. It needs no key: everyone who has a link may fetch its file."""

    async def send_file(request: Request) -> Response:
        database = None if agents.host is None else agents.host.database
        file = None if database is None else await find_file(database, request.path_params["token"], utc_now())
        if file is None:
            raise HttpError(404, "there is no such file, or it was deleted; files are kept for seven days")
        if not UnreadBytes(group_address(request.scope["client"][0])).add(len(file.data)):
            raise HttpError(503, "too much waits to be read from your address; read it, and try again", retry_after_s=_BUSY_S)
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        return Response(file.data, media_type=_harmless_type(file.type), headers=headers)

    return DoorRoutes(open_routes=(Route(f"{FILES_PATH}/{{token}}/{{name}}", send_file),))


async def store_files(
    repository: CallerRepository, caller: Caller, request: UUID, files: Sequence[NewFile], public_url: str
) -> list[dict[str, Any]]:
    """Store the files of a request. Return them as attachments, as agents read them (docs/how-to/files.md).

    A request that is sent again gets the same links. Raise HttpError if the caller has too many files.
    """
    if not files:
        return []
    try:
        stored = await repository.add_files(caller.address, request, files, utc_now())
    except TooManyFilesError as error:
        text = "you have stored too many files; they are deleted after seven days; send links, or smaller files"
        raise HttpError(HTTPStatus.INSUFFICIENT_STORAGE, text) from error
    return [
        {
            "url": _link(public_url, file),
            "name": file.name,
            "type": file.type,
            "size": file.size,
            "description": None,
        }
        for file in stored
    ]


def upload_to_page(upload: UploadFile, repository: CallerRepository, public_url: str) -> UploadFile:
    """Return a function that stores the files of an agent here while it answers in the page, else by `upload`.

    The page loads nothing from another host, such as that of the XMPP server.
    """

    async def upload_file(name: str, data: bytes, media_type: str, progress: Progress | None = None) -> str:
        request = CURRENT_REQUEST.get()
        if request is None or request.metadata.get("channel") != PAGE_CHANNEL:
            return await upload(name, data, media_type, progress)
        owner = bare_jid(request.metadata["sender"])
        try:
            [file] = await repository.add_files(owner, request.request_id, [NewFile(name, media_type, data)], utc_now())
        except TooManyFilesError as error:
            raise UploadError(name, "too many files of the person are stored") from error
        return _link(public_url, file)

    return upload_file


def _link(public_url: str, file: StoredFile) -> str:
    return f"{public_url}{FILES_PATH}/{file.token}/{quote(file.name, safe='')}"


def _harmless_type(media_type: str) -> str:
    """Return the type with which a file is sent: what a browser could run is a plain text, or only data."""
    media_type = media_type.partition(";")[0].strip().lower()
    kind = media_type.partition("/")[0]
    if media_type in _PLAIN_TYPES or (kind in _PLAIN_KINDS and media_type not in _ACTIVE_TYPES):
        return media_type
    return "text/plain" if kind == "text" or media_type.endswith(("+xml", "/xml")) else "application/octet-stream"
