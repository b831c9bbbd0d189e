"""Files that people link to, and files of an agent's own: fetched with care, uploaded through its server."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http import HTTPStatus
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, TypeAlias

from ..codec import file_name_of, safe_file_name
from ..exceptions import FetchError, UploadError
from .url_policy import ResolveHost, UrlPolicy, resolve_host

if TYPE_CHECKING:
    from aiohttp import ClientResponse

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many bytes of how many are sent."""

UploadFile: TypeAlias = Callable[[str, bytes, str, Progress | None], Awaitable[str]]
"""Keeps data of a name and a type somewhere, and returns the link."""
FetchFile: TypeAlias = Callable[..., Awaitable["FetchedFile"]]
"""`fetch`, or what stands for it."""

DEFAULT_MEDIA_TYPE = "application/octet-stream"

_MAX_LINKS = 1000
_MAX_REDIRECTS = 5
_REDIRECT_STATUSES = {301, 302, 303, 307, 308}
_MEDIA_TYPE = re.compile(r"[!-~]+/[!-~][ -~]*")  # it goes into XML and into a header
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file as it came. `url` is where it was found in the end; `type` is the server's word, without parameters."""

    url: str
    name: str | None
    type: str
    data: bytes

    def __repr__(self) -> str:
        return f"FetchedFile({self.name!r}, {self.type!r}, {len(self.data):,} bytes)"


async def fetch(
    url: str,
    *,
    max_bytes: int = 10_000_000,
    timeout_s: float = 30.0,
    types: Sequence[str] | None = None,
    allow_private: bool | Sequence[str] = False,
    resolve: ResolveHost = resolve_host,
) -> FetchedFile:
    """Fetches what a stranger's link leads to, from the public internet only. FetchError for everything else.

    The address that was checked is the one that is connected to, and every redirect (at most 5) is checked again. `timeout_s`
    is for all of it. `types` are media types that are taken, such as `("image/*", "text/plain")`. Ports below 1024 other than
    80 and 443 are no web servers. `allow_private` lets everything through; better, for an intranet, name the networks:
    `("10.1.0.0/16",)`. Nobody's cookies, passwords or proxies are used.
    """
    # A text is a sequence too, of letters: of "image/*" the last would match everything.
    types = (types,) if isinstance(types, str) else types
    access = UrlPolicy((allow_private,) if isinstance(allow_private, str) else allow_private, resolve)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await _follow(url, access, max_bytes, types)
    except TimeoutError as error:
        raise FetchError(url, f"it took longer than {timeout_s:g} s" if limit.expired() else "no connection in time") from error


class Files:
    """An agent's way to files: a constructor parameter of the name `files` gets it."""

    def __init__(self, upload_file: UploadFile, fetch_file: FetchFile = fetch) -> None:
        self._upload_file = upload_file
        self._fetch_file = fetch_file
        self._uploaded_links: dict[str, None] = {}

    async def upload(self, name: str, data: bytes, type: str | None = None, progress: Progress | None = None) -> str:
        """Keeps `data` with the agent's server (XEP-0363), and returns the link for whoever is to have it.

        Said alone, as a whole markdown block, or as a value of a data block, it is shown as the file itself (XEP-0066).
        The type is guessed from the name if it is not given. Whoever has the link can read the file, and the server decides how
        long. `progress(sent, total)` is called now and then; what it raises ends the upload. UploadError if the server has no
        such service, or refuses.
        """
        if not data:
            raise UploadError(name, "it is empty, and servers keep no empty files")
        called = safe_file_name(name)
        if called is None:
            raise UploadError(name, "that is no name of a file")
        kind = type or guess_type(called)[0] or DEFAULT_MEDIA_TYPE
        if not _MEDIA_TYPE.fullmatch(kind):
            raise UploadError(name, f"{kind!r} is no media type; write it like image/png")
        link = await self._upload_file(called, data, kind, progress)
        self._uploaded_links[link] = None
        if len(self._uploaded_links) > _MAX_LINKS:
            del self._uploaded_links[next(iter(self._uploaded_links))]
        return link

    def has_uploaded(self, link: str) -> bool:
        """Whether the link is one of the newest 1,000 that `upload` has returned; such a one is shown as the file.

        Of no other link is that to be: the clients of people fetch what is shown to them, and tell whoever set it who they are.
        """
        return link in self._uploaded_links

    async def fetch(self, url: str, **limits: Any) -> FetchedFile:
        """As the function `fetch`, with the same keyword arguments."""
        return await self._fetch_file(url, **limits)


async def _follow(url: str, url_policy: UrlPolicy, max_bytes: int, types: Sequence[str] | None) -> FetchedFile:
    from aiohttp import ClientError
    from yarl import URL

    start = url
    for _ in range(_MAX_REDIRECTS + 1):
        checked = url_policy.check(url)
        addresses = await url_policy.resolve_addresses(checked)
        try:
            async with _session(addresses) as session, session.get(checked, allow_redirects=False) as response:
                if response.status not in _REDIRECT_STATUSES:
                    data = await _read(url, response, max_bytes, types)
                    return FetchedFile(url, file_name_of(url) or file_name_of(start), _type_of(response), data)
                if not (target := response.headers.get("Location", "")):
                    raise FetchError(url, "it redirects to nowhere")
        except TimeoutError:
            raise
        except (ClientError, OSError, ValueError) as error:  # aiohttp lets the ValueErrors of its parsers through
            raise FetchError(url, describe_connection_error(error)) from error
        try:
            url = str(checked.join(URL(target)))
        except ValueError as error:
            raise FetchError(url, "it redirects to what is no URL") from error
    raise FetchError(start, f"it redirects more than {_MAX_REDIRECTS} times")


def _session(addresses: list[str]) -> Any:
    """One connection, to one of these addresses."""
    from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Checked(AbstractResolver):
        """Asks nobody again: the second answer could be another one (DNS rebinding)."""

        async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in addresses
            ]

        async def close(self) -> None:
            """Nothing to close."""

    return ClientSession(
        connector=TCPConnector(resolver=Checked(), use_dns_cache=False, force_close=True),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        timeout=ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        headers={"Accept-Encoding": "identity", "User-Agent": "spade-coreason"},
    )


async def _read(url: str, response: ClientResponse, max_bytes: int, types: Sequence[str] | None) -> bytes:
    if response.status != HTTPStatus.OK:
        raise FetchError(url, f"the server answers {format_status(response.status)}")
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise FetchError(url, "the server compresses it, although it was asked not to")
    kind = _type_of(response)
    if types is not None and not any(fnmatchcase(kind, wanted.lower()) for wanted in types):
        raise FetchError(url, f"it is {kind}, and only {', '.join(types) or 'nothing'} is taken")
    too_much = FetchError(url, f"it has more than {max_bytes:,} bytes")
    if response.content_length is not None and response.content_length > max_bytes:
        raise too_much
    data = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes:  # whatever it promised
            raise too_much
    return bytes(data)


def describe_connection_error(error: Exception) -> str:
    """What went wrong, in words of ours: those of aiohttp quote what came from the other side."""
    from aiohttp import ClientConnectionError, ClientConnectorCertificateError

    if isinstance(error, ClientConnectorCertificateError):
        problem = "its certificate is not trusted"
    elif isinstance(error, ClientConnectionError | OSError):
        problem = "the connection fails"
    else:
        problem = "what answers is no web server, or a broken one"
    return f"{problem} ({type(error).__name__})"


def _type_of(response: ClientResponse) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower() or DEFAULT_MEDIA_TYPE


def format_status(status: int) -> str:
    """A status as `404 Not Found`; never the phrase that came."""
    return f"{status} {HTTPStatus(status).phrase}" if status in HTTPStatus._value2member_map_ else str(status)
