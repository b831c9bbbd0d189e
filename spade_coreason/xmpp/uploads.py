"""Uploads of files to the agent's own server, under a link that is open to everyone who knows it (XEP-0363)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from slixmpp.exceptions import IqError, IqTimeout

from ..domain.environment.https_trust import HttpsTrust
from ..domain.texts.links import is_link
from ..domain.texts.translation import N_
from ..exceptions import UploadError
from ..runtime import Progress, describe_connection_error, format_status
from .codec import FORM_FIELD, FORM_VALUE

_NAMESPACE = "urn:xmpp:http:upload:0"
_TAG = f"{{{_NAMESPACE}}}"

_DISCO_TIMEOUT_S = 5.0
_RESPONSE_TIMEOUT_S = 10.0
_UPLOAD_TIMEOUT_S = 600.0
_CHUNK_BYTES = 65_536
_PROBE_TIMEOUT_S = 10.0
_MAX_SERVICES = 50
_PROBE_NAME = "test.txt"
_ENABLE = "enable it, or set limits.file_over_bytes to 0"
# The only headers that a server may add to the upload; all others are ignored (XEP-0363, 4).
_ALLOWED_HEADERS = {"authorization", "cookie", "expires"}
_NEWLINES = str.maketrans("", "", "\r\n")
_NO_SERVER_BEHIND = {502, 503, 504}


class _UploadService(NamedTuple):
    jid: str
    max_bytes: int | None


class _UploadSlot(NamedTuple):
    put_url: str
    headers: dict[str, str]
    get_url: str


class Uploads:
    """Uploads through one session. `trust` verifies the certificate of the web server."""

    def __init__(self, client: Any, trust: HttpsTrust) -> None:
        self._client = client
        self._trust = trust
        self._service: _UploadService | None = None

    async def upload(self, name: str, data: bytes, type: str, progress: Progress | None = None) -> str:
        """Upload `data` as a file and return its link. Raise UploadError if there is no upload service, or if it refuses."""
        try:
            service = self._service = self._service or await self._find_service(name)
            if service.max_bytes is not None and len(data) > service.max_bytes:
                raise _too_large_error(name, len(data), service.max_bytes)
            slot = await self._request_slot(name, len(data), type, service)
        except BaseException:
            self._service = None  # next time the service may be another one, or accept more
            raise
        await self._send_file(name, data, type, slot, progress)
        return slot.get_url

    async def find_problem(self) -> UploadError | None:
        """Return the reason why uploads will fail: no service, no slot, or an address that does not answer. Upload nothing."""
        try:
            slot = await self._request_slot(_PROBE_NAME, 1, "text/plain", await self._find_service(_PROBE_NAME))
            await self._probe(slot)
        except UploadError as error:
            return error
        return None

    async def _find_service(self, name: str) -> _UploadService:
        """Find the upload service among the server's items (XEP-0030)."""
        disco, domain = self._client.plugin["xep_0030"], str(self._client.boundjid.domain)
        if not self._client.is_full_server:
            problem = N_("{domain} has no service for files; the embedded server has none", domain=domain)
            raise UploadError(name, problem, "use another server, or set limits.file_over_bytes to 0")

        def get_info(jid: str) -> Any:
            return disco.get_info(jid, timeout=_DISCO_TIMEOUT_S)

        queries = (disco.get_items(domain, timeout=_DISCO_TIMEOUT_S), get_info(domain))
        replies: Any = await asyncio.gather(*queries, return_exceptions=True)
        items_reply, domain_info = replies
        if isinstance(domain_info, IqTimeout):
            problem = f"{domain} does not answer the query for its upload service"
            raise UploadError(name, problem, "check the log of the server") from domain_info
        items = [] if isinstance(items_reply, BaseException) else items_reply["disco_items"]["items"]
        services = sorted(str(jid) for jid, node, _ in items if not node)[:_MAX_SERVICES]
        for info in (domain_info, *await asyncio.gather(*map(get_info, services), return_exceptions=True)):
            if not isinstance(info, BaseException) and _NAMESPACE in info["disco_info"]["features"]:
                return _UploadService(str(info["from"]), _parse_max_bytes(info.xml))
        problem = N_(
            "{domain} has no service for files (XEP-0363); Prosody has it as http_file_share, ejabberd as mod_http_upload",
            domain=domain,
        )
        raise UploadError(name, problem, _ENABLE)

    async def _request_slot(self, name: str, size: int, type: str, service: _UploadService) -> _UploadSlot:
        """Request the URLs for one file: one to upload it to, and one to fetch it from."""
        iq = self._client.make_iq_get(ito=service.jid)
        remedy = f"check the limits and the log of {service.jid}"
        iq.append(Element(f"{_TAG}request", {"filename": name, "size": str(size), "content-type": type}))
        try:
            reply = await iq.send(timeout=_RESPONSE_TIMEOUT_S)
        except IqTimeout as error:
            raise UploadError(name, f"{service.jid} did not answer within {_RESPONSE_TIMEOUT_S:g} s", remedy) from error
        except IqError as error:
            if (too_large := error.iq.xml.find(f".//{_TAG}file-too-large")) is not None:
                raise _too_large_error(name, size, _parse_number(too_large.findtext(f"{_TAG}max-file-size"))) from error
            refusal = error.iq["error"]
            text = f" ({refusal['text']})" if refusal["text"] else ""
            raise UploadError(name, f"{service.jid} refuses: {refusal['condition']}{text}", remedy) from error
        slot = _parse_slot(reply.xml)
        if slot is None:
            raise UploadError(name, f"{service.jid} returned no usable link", remedy)
        return slot

    async def _send_file(self, name: str, data: bytes, type: str, slot: _UploadSlot, progress: Progress | None) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(data), _CHUNK_BYTES):
                yield data[start : start + _CHUNK_BYTES]
                if progress is not None:
                    try:
                        progress(min(start + _CHUNK_BYTES, len(data)), len(data))
                    except Exception as error:
                        stops.append(error)  # aiohttp reports it as a failed connection
                        raise

        stops: list[Exception] = []
        headers = {**slot.headers, "Content-Type": type, "Content-Length": str(len(data)), "User-Agent": "spade-coreason"}
        try:
            status = await self._request("PUT", name, slot, _UPLOAD_TIMEOUT_S, data=chunks(), headers=headers)
        except UploadError:
            if stops:
                raise UploadError(name, "the caller cancelled it") from stops[0]
            raise
        if not 200 <= status < 300:
            raise UploadError(name, f"{_host_of(slot)} answered {format_status(status)}", _remedy_of(slot))

    async def _probe(self, slot: _UploadSlot) -> None:
        """Raise UploadError unless the address of the upload answers. Any answer will do, unless a proxy has no server."""
        status = await self._request("HEAD", _PROBE_NAME, slot, _PROBE_TIMEOUT_S, headers={"User-Agent": "spade-coreason"})
        if status in _NO_SERVER_BEHIND:
            raise UploadError(_PROBE_NAME, f"{_host_of(slot)} answered {format_status(status)}", _remedy_of(slot))

    async def _request(self, method: str, name: str, slot: _UploadSlot, timeout_s: float, **arguments: Any) -> int:
        """Send a request to the address of the upload, and return the status of the answer."""
        from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        try:
            session = ClientSession(
                connector=TCPConnector(ssl=self._trust.context()), cookie_jar=DummyCookieJar(), timeout=ClientTimeout(timeout_s)
            )
            async with session, session.request(method, slot.put_url, allow_redirects=False, **arguments) as response:
                return response.status
        except TimeoutError as error:
            problem = f"{_host_of(slot)} took longer than {timeout_s:g} s"
            raise UploadError(name, problem, _remedy_of(slot)) from error
        except (ClientError, OSError, ValueError) as error:
            problem = f"{_host_of(slot)}: {describe_connection_error(error)}"
            raise UploadError(name, problem, _remedy_of(slot)) from error


def _host_of(slot: _UploadSlot) -> str:
    parts = urlsplit(slot.put_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _remedy_of(slot: _UploadSlot) -> str:
    names = "Prosody: http_external_url, ejabberd: put_url"
    return f"check that this machine can reach {_host_of(slot)} and trusts its certificate (server.tls.ca_file; {names})"


def _parse_slot(reply: Element) -> _UploadSlot | None:
    put, get = reply.find(f"{_TAG}slot/{_TAG}put"), reply.find(f"{_TAG}slot/{_TAG}get")
    if put is None or get is None or not is_link(put.get("url", "")) or not is_link(get.get("url", "")):
        return None
    headers = {
        header.get("name", "").translate(_NEWLINES): (header.text or "").translate(_NEWLINES).strip()
        for header in put.iterfind(f"{_TAG}header")
    }
    return _UploadSlot(
        put.get("url", ""), {k: v for k, v in headers.items() if k.lower() in _ALLOWED_HEADERS}, get.get("url", "")
    )


def _parse_max_bytes(info: Element) -> int | None:
    for field in info.iter(FORM_FIELD):
        if field.get("var") == "max-file-size":
            return _parse_number(field.findtext(FORM_VALUE))
    return None


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 20 else None


def _too_large_error(name: str, size: int, max_bytes: int | None) -> UploadError:
    limit = f", and the server accepts {max_bytes:,}" if max_bytes is not None else ", which is more than the server accepts"
    return UploadError(name, f"it has {size:,} bytes{limit}")
