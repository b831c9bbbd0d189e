"""Files: those that people link to are fetched from the public internet; those of an agent are uploaded to its server."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from http import HTTPStatus
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, TypeAlias

from ..domain.environment.https_trust import HttpsTrust, split_tls_reason
from ..domain.texts.file_names import file_name_of, safe_file_name
from ..exceptions import FetchError, UploadError
from .url_policy import ResolveHost, UrlPolicy, resolve_host

if TYPE_CHECKING:
    from aiohttp import ClientResponse

log = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""A function that is called with the number of sent bytes and the total."""

UploadFile: TypeAlias = Callable[[str, bytes, str, Progress | None], Awaitable[str]]
"""A function that uploads data with a name and a media type, and returns the link."""
FetchFile: TypeAlias = Callable[..., Awaitable["FetchedFile"]]
"""The function `fetch`, or a replacement with its parameters."""

DEFAULT_MEDIA_TYPE = "application/octet-stream"

_MAX_LINKS = 1000
_MAX_REDIRECTS = 5
_REDIRECT_STATUSES = {301, 302, 303, 307, 308}
_MEDIA_TYPE = re.compile(r"[!-.0-~]+/[!-~][ -~]*")  # it goes into XML and into a header
_RECEIVED_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}", re.ASCII)  # RFC 6838, section 4.2
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A fetched file. `url` is its address after all redirects; `type` is the server's media type, without parameters.

    A server that names no valid media type gets the type `application/octet-stream`.
    """

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
    trust: HttpsTrust | None = None,
    own_urls: Sequence[str] = (),
) -> FetchedFile:
    """Fetch the file behind a stranger's link, from the public internet only. `FetchError` for everything else.

    The connection goes to the address that was checked, and each redirect (at most 5) is checked again. Ports below 1024
    are refused, except 80 and 443. Cookies, passwords and proxies are not used.

    `max_bytes` limits the size, and `timeout_s` the whole time, redirects included. `types` are the accepted media types,
    such as `("image/*", "text/plain")`; None accepts all. `allow_private=True` allows all addresses. For an intranet it is
    better to name the networks: `("10.1.0.0/16",)`. `resolve` returns the addresses of a host. `trust` has the authorities
    of HTTPS servers; by default those of the system. Links below `own_urls` may lead to a private address.
    """
    # A string is a sequence of characters, and the last character of "image/*" would match every type.
    types = (types,) if isinstance(types, str) else types
    networks = (allow_private,) if isinstance(allow_private, str) else allow_private
    url_policy = UrlPolicy(networks, resolve, own_urls)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await _follow(url, url_policy, max_bytes, types, trust)
    except TimeoutError as error:
        raise FetchError(url, f"it took longer than {timeout_s:g} s" if limit.expired() else "no connection in time") from error


class UploadWarnings:
    """The log's warnings about an upload service that fails: one at the first failure, and one line when it works again.

    Share one object between all agents of a server.
    """

    def __init__(self) -> None:
        self._is_failing = False

    def report_failure(self, error: UploadError) -> None:
        """Log a failed upload, unless the last one failed too or only this file cannot be uploaded."""
        if error.remedy and not self._is_failing:
            self._is_failing = True
            log.warning("%s", describe_upload_problem(error))

    def report_success(self) -> None:
        """Log that uploads work again, if the last one failed."""
        if self._is_failing:
            self._is_failing = False
            log.warning("files can be uploaded again")


def describe_upload_problem(error: UploadError) -> str:
    """Return the line for the operator. It names no file, because a name may be a person's."""
    return f"files cannot be uploaded, so long answers are sent in several messages: {error.problem}; {error.remedy}"


class Files:
    """The uploads and downloads of an agent. A constructor parameter named `files` receives it.

    Failures of the upload service are reported to `warnings`; None reports nothing. `trust` and `own_urls` are those
    of `fetch`.
    """

    def __init__(
        self,
        upload_file: UploadFile,
        fetch_file: FetchFile = fetch,
        warnings: UploadWarnings | None = None,
        *,
        trust: HttpsTrust | None = None,
        own_urls: Sequence[str] = (),
    ) -> None:
        self._upload_file = upload_file
        self._fetch_file = partial(fetch_file, trust=trust, own_urls=own_urls) if trust or own_urls else fetch_file
        self.ca_file = None if trust is None else trust.ca_file
        self._warnings = warnings
        self._uploaded_links: dict[str, None] = {}
        self.upload_count = 0
        """The number of files that were uploaded."""

    async def upload(self, name: str, data: bytes, type: str | None = None, progress: Progress | None = None) -> str:
        """Upload `data` to the agent's server (XEP-0363), and return the link to the file.

        As a whole markdown block, or as a value of a data block, the link is shown as the file itself (XEP-0066). Everyone
        who has the link can read the file, and the server decides for how long. `type` is the media type; by default it is
        guessed from the name. `progress(sent, total)` is called from time to time with numbers of bytes; its exceptions end
        the upload. `UploadError` if the server has no such service, or refuses.
        """
        if not data:
            raise UploadError(name, "it is empty, and servers keep no empty files")
        safe_name = safe_file_name(name)
        if safe_name is None:
            raise UploadError(name, "that is not a valid name of a file")
        media_type = type or guess_type(safe_name)[0] or DEFAULT_MEDIA_TYPE
        if not _MEDIA_TYPE.fullmatch(media_type):
            raise UploadError(name, f"{media_type!r} is no media type; write it like image/png")
        try:
            link = await self._upload_file(safe_name, data, media_type, progress)
        except UploadError as error:
            self.report_failure(error)
            raise
        if self._warnings is not None:
            self._warnings.report_success()
        self.upload_count += 1
        self._uploaded_links[link] = None
        if len(self._uploaded_links) > _MAX_LINKS:
            del self._uploaded_links[next(iter(self._uploaded_links))]
        return link

    def report_failure(self, error: UploadError) -> None:
        """Report that the upload service fails, for the log. `upload` reports its own errors."""
        if self._warnings is not None:
            self._warnings.report_failure(error)

    def has_uploaded(self, link: str) -> bool:
        """Return True if the link is one of the newest 1,000 that `upload` has returned. Only these are shown as files.

        The clients of people fetch a file that is shown to them, and so reveal themselves to the author of its link.
        """
        return link in self._uploaded_links

    async def fetch(self, url: str, **limits: Any) -> FetchedFile:
        """Fetch a file with the function `fetch`, which takes the same keyword arguments."""
        return await self._fetch_file(url, **limits)


async def _follow(
    url: str, url_policy: UrlPolicy, max_bytes: int, types: Sequence[str] | None, trust: HttpsTrust | None
) -> FetchedFile:
    from aiohttp import ClientError
    from yarl import URL

    start = url
    for _ in range(_MAX_REDIRECTS + 1):
        checked_url = url_policy.check(url)
        addresses = await url_policy.resolve_addresses(checked_url)
        try:
            async with _session(addresses, trust) as session, session.get(checked_url, allow_redirects=False) as response:
                if response.status not in _REDIRECT_STATUSES:
                    data = await _read(url, response, max_bytes, types)
                    return FetchedFile(url, file_name_of(url) or file_name_of(start), _type_of(response), data)
                if not (target := response.headers.get("Location", "")):
                    raise FetchError(url, "it redirects to nowhere")
        except TimeoutError:
            raise
        except (ClientError, OSError, ValueError) as error:  # aiohttp lets the ValueErrors of its parsers through
            raise FetchError(url, describe_connection_error(error), _remedy_of(error)) from error
        try:
            url = str(checked_url.join(URL(target)))
        except ValueError as error:
            raise FetchError(url, "it redirects to what is no URL") from error
    raise FetchError(start, f"it redirects more than {_MAX_REDIRECTS} times")


def _session(addresses: list[str], trust: HttpsTrust | None) -> Any:
    """Create a session for one connection, to one of these addresses."""
    from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Checked(AbstractResolver):
        """The checked addresses. A second query could return others (DNS rebinding)."""

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
            """Do nothing: there is nothing to close."""

    return ClientSession(
        connector=TCPConnector(
            resolver=Checked(), use_dns_cache=False, force_close=True, ssl=True if trust is None else trust.context()
        ),
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
    media_type = _type_of(response)
    if types is not None and not any(fnmatchcase(media_type, pattern.lower()) for pattern in types):
        raise FetchError(url, f"it is {media_type}, and only {', '.join(types) or 'nothing'} is taken")
    if response.content_length is not None and response.content_length > max_bytes:
        raise _too_large_error(url, max_bytes)
    data = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes:  # regardless of its Content-Length
            raise _too_large_error(url, max_bytes)
    return bytes(data)


def _too_large_error(url: str, max_bytes: int) -> FetchError:
    # Held in a variable of `_read`, the error and the frame would refer to each other, and keep the data.
    return FetchError(url, f"it has more than {max_bytes:,} bytes")


def describe_connection_error(error: Exception) -> str:
    """Describe an error in our own words, because the texts of aiohttp quote the other side."""
    from aiohttp import ClientConnectionError, ClientConnectorDNSError

    tls_error = _tls_error_of(error)
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({tls_error.verify_message.removesuffix('.')})"
    if tls_error is not None:  # its errno is OpenSSL's, and 1 would read as "Operation not permitted"
        words, is_alert = split_tls_reason(tls_error)
        return f"it refuses TLS (alert: {words})" if is_alert else f"TLS fails ({words})"
    if isinstance(error, ClientConnectorDNSError):
        return "its host name has no address"
    if isinstance(error, ClientConnectionError | OSError):
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else ""
        return f"the connection fails{f' ({reason})' if reason else ''}"
    return "what answers is no web server, or a broken one"


def _tls_error_of(error: BaseException | None) -> ssl.SSLError | None:
    """Return the error of OpenSSL behind an error of aiohttp, or None."""
    found = None
    while error is not None:
        found = error if isinstance(error, ssl.SSLError) else found
        error = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error.__cause__
    return found


def _remedy_of(error: Exception) -> str:
    is_untrusted = isinstance(_tls_error_of(error), ssl.SSLCertVerificationError)
    return "for an authority of your own, set server.tls.ca_file to its certificate" if is_untrusted else ""


def _type_of(response: ClientResponse) -> str:
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip(" \t").lower()
    return media_type if _RECEIVED_MEDIA_TYPE.fullmatch(media_type) else DEFAULT_MEDIA_TYPE


def format_status(status: int) -> str:
    """Format a status as `404 Not Found`, with the standard phrase and not that of the server."""
    return f"{status} {HTTPStatus(status).phrase}" if status in HTTPStatus._value2member_map_ else str(status)
