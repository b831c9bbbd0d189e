"""Files that a person's message links to, as plain values. Nothing is downloaded."""

from __future__ import annotations

import re
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from ...domain.file_names import file_name_of, safe_file_name
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
"""The elements of a message that may contain a link."""

_MAX_ATTACHMENTS = 20
_MAX_URL_CHARACTERS = 2048
_MAX_DESCRIPTION_CHARACTERS = 1024
_MAX_SIZE_DIGITS = 15

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\xa0]")  # urlsplit removes some of these, so the check would see another URL

Attachment: TypeAlias = dict[str, Any]


def read_attachments(message: Element) -> list[Attachment]:
    """Read the files that `<message/>` links to, as `{"url", "name", "type", "size", "description"}`.

    A value that the message does not give is None. The links may follow XEP-0066, XEP-0447 and XEP-0385; a file linked
    in several of these ways is listed once. All values are claims of the sender, size and type too. Only http and https
    URLs count, at most 20, in the order of the message.
    """
    found: dict[str, Attachment] = {}
    for child in message:
        if (attachment := _read_attachment(child)) is None:
            continue
        if (known := found.get(attachment["url"])) is not None:
            found[attachment["url"]] = {key: attachment[key] if value is None else value for key, value in known.items()}
        elif len(found) < _MAX_ATTACHMENTS:
            found[attachment["url"]] = attachment
    return [{**attachment, "name": attachment["name"] or file_name_of(url)} for url, attachment in found.items()]


def _read_attachment(child: Element) -> Attachment | None:
    if child.tag == OOB:
        return _make_attachment([child.findtext(OOB_URL)], {"description": _clip_description(child.findtext(OOB_DESC))})
    if child.tag == SHARED_FILE:
        # An encrypted source (XEP-0448) has its URL deeper down, and is ignored: the download would not be the file.
        urls = [source.get("target") for source in child.iterfind(f"{SHARED_FILE_SOURCES}/{URL_DATA}")]
        return _make_attachment(urls, _read_metadata(child.find(f"{FILE_METADATA}file"), FILE_METADATA))
    if child.tag == REFERENCE and (media := child.find(SHARED_MEDIA)) is not None:
        urls = [source.get("uri") for source in media.iterfind(f"{SHARED_MEDIA_SOURCES}/{REFERENCE}")]
        return _make_attachment(urls, _read_metadata(media.find(f"{JINGLE_FILE}file"), JINGLE_FILE))
    return None


def _make_attachment(sources: list[str | None], details: Attachment) -> Attachment | None:
    """Return the file at the first of its sources that is a link."""
    for source in sources:
        if source is not None and is_link(url := source.strip()):
            return {"url": url, "name": None, "type": None, "size": None, "description": None, **details}
    return None


def is_link(url: str) -> bool:
    """True for an http or https URL with a host, of at most 2,048 characters."""
    if len(url) > _MAX_URL_CHARACTERS or _NOT_IN_A_URL.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, or a port that is no number
        return False


def _read_metadata(file: Element | None, namespace: str) -> Attachment:
    if file is None:
        return {}
    texts = {key: (file.findtext(f"{namespace}{key}") or "").strip() for key in ("name", "media-type", "size", "desc")}
    kind, size = texts["media-type"].lower(), texts["size"]
    return {
        "name": safe_file_name(texts["name"]),
        "type": kind if _MEDIA_TYPE.fullmatch(kind) else None,
        "size": int(size) if size.isascii() and size.isdecimal() and len(size) <= _MAX_SIZE_DIGITS else None,
        "description": _clip_description(texts["desc"]),
    }


def _clip_description(text: str | None) -> str | None:
    return (text or "").strip()[:_MAX_DESCRIPTION_CHARACTERS] or None
