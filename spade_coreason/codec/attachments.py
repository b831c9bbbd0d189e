"""The files that a person's message links to, as plain values; nothing is fetched."""

from __future__ import annotations

import re
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element

from .namespaces import (
    FILE_METADATA,
    JINGLE_FILE,
    OOB,
    OOB_DESC,
    OOB_URL,
    REFERENCE,
    SHARED_FILE,
    SHARED_FILE_SOURCES,
    SHARED_MEDIA,
    SHARED_MEDIA_SOURCES,
    URL_DATA,
)

LINK_ELEMENTS = frozenset({OOB, SHARED_FILE, REFERENCE})
"""The elements of a message in which a link may stand."""

_MAX_ATTACHMENTS = 20
_MAX_URL_CHARACTERS = 2048
_MAX_NAME_CHARACTERS = 255
_MAX_DESCRIPTION_CHARACTERS = 1024
_MAX_SIZE_DIGITS = 15

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\xa0]")  # urlsplit takes some of these out, and what is checked is another URL
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)  # and what turns the direction of a name around

Attachment: TypeAlias = dict[str, Any]


def read_attachments(message: Element) -> list[Attachment]:
    """What `<message/>` links to, as `{"url", "name", "type", "size", "description"}`; None is what it does not say.

    Read are XEP-0066, XEP-0447 and XEP-0385; one file named in several of these ways is one. It is all the sender's word:
    size and type too. Only http and https, at most 20, in the order of the message.
    """
    found: dict[str, Attachment] = {}
    for child in message:
        if (one := _read_attachment(child)) is None:
            continue
        if (known := found.get(one["url"])) is not None:
            found[one["url"]] = {key: one[key] if value is None else value for key, value in known.items()}
        elif len(found) < _MAX_ATTACHMENTS:
            found[one["url"]] = one
    return [{**one, "name": one["name"] or file_name_of(url)} for url, one in found.items()]


def file_name_of(url: str) -> str | None:
    """The last segment of a URL's path, decoded, as a file may be called; None where it has none."""
    try:
        path = urlsplit(url).path
    except ValueError:
        return None
    return safe_file_name(unquote(path.rpartition("/")[2]))


def _read_attachment(child: Element) -> Attachment | None:
    if child.tag == OOB:
        return _make_attachment([child.findtext(OOB_URL)], {"description": _clip_description(child.findtext(OOB_DESC))})
    if child.tag == SHARED_FILE:
        # Of an encrypted source (XEP-0448) the URL stands deeper: what could be fetched there is not the file.
        urls = [source.get("target") for source in child.iterfind(f"{SHARED_FILE_SOURCES}/{URL_DATA}")]
        return _make_attachment(urls, _read_metadata(child.find(f"{FILE_METADATA}file"), FILE_METADATA))
    if child.tag == REFERENCE and (media := child.find(SHARED_MEDIA)) is not None:
        urls = [source.get("uri") for source in media.iterfind(f"{SHARED_MEDIA_SOURCES}/{REFERENCE}")]
        return _make_attachment(urls, _read_metadata(media.find(f"{JINGLE_FILE}file"), JINGLE_FILE))
    return None


def _make_attachment(sources: list[str | None], described: Attachment) -> Attachment | None:
    """The file at the first of its sources that is a link."""
    for source in sources:
        if source is not None and is_link(url := source.strip()):
            return {"url": url, "name": None, "type": None, "size": None, "description": None, **described}
    return None


def is_link(url: str) -> bool:
    """Whether it is an http or https URL of a host, no longer than anybody needs."""
    if len(url) > _MAX_URL_CHARACTERS or _NOT_IN_A_URL.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is no number
        return False


def _read_metadata(file: Element | None, namespace: str) -> Attachment:
    if file is None:
        return {}
    said = {key: (file.findtext(f"{namespace}{key}") or "").strip() for key in ("name", "media-type", "size", "desc")}
    kind, size = said["media-type"].lower(), said["size"]
    return {
        "name": safe_file_name(said["name"]),
        "type": kind if _MEDIA_TYPE.fullmatch(kind) else None,
        "size": int(size) if size.isascii() and size.isdecimal() and len(size) <= _MAX_SIZE_DIGITS else None,
        "description": _clip_description(said["desc"]),
    }


def safe_file_name(text: str) -> str | None:
    """As a file may be called anywhere; None where nothing is left. Agents keep files so: none may lead out of a directory."""
    name = _CONTROLS.sub("", text).replace("\\", "/").rpartition("/")[2].strip()
    return None if name in ("", ".", "..") else name[:_MAX_NAME_CHARACTERS]


def _clip_description(text: str | None) -> str | None:
    return (text or "").strip()[:_MAX_DESCRIPTION_CHARACTERS] or None
