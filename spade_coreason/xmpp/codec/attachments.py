"""Files that a person's message links to, as plain values. Nothing is downloaded."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple, TypeAlias
from xml.etree.ElementTree import Element

from ...domain.texts.file_names import file_name_of, safe_file_name
from ...domain.texts.links import MAX_URL_CHARACTERS, MEDIA_TYPE, is_link
from .namespaces import (
    FILE_METADATA,
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

LINK_ELEMENTS = frozenset({OOB, SHARED_FILE, SHARED_FILE_SOURCES, REFERENCE})
"""The elements of a message that may contain a link."""

_MAX_ATTACHMENTS = 20
_MAX_SOURCES = 20
_MAX_DESCRIPTION_CHARACTERS = 1024
_MAX_SIZE_DIGITS = 15

Attachment: TypeAlias = dict[str, Any]


class LinkedFiles(NamedTuple):
    """The files that a message links to."""

    attachments: list[Attachment]
    left_out_count: int
    """The number of files that are no attachment, because none of their links is one or the message has too many."""
    text: str
    """The links of the attachments, or else one that is left out: the text of a message without another."""

    def payload(self, question: str) -> dict[str, Any]:
        """Return the payload of a request with these files. A message without a text has its links as the query."""
        payload: dict[str, Any] = {"query": question.strip() or self.text}
        if self.attachments:
            payload["attachments"] = self.attachments
        if self.left_out_count:
            payload["attachments_left_out"] = self.left_out_count
        return payload


def read_linked_files(message: Element) -> LinkedFiles | None:
    """Read the files that `<message/>` links to, as `{"url", "name", "type", "size", "description"}`. None without a link.

    A value that the message does not give is None. The links may follow XEP-0066, XEP-0447 and XEP-0385; a file linked
    in several of these ways is listed once, with the first of its links. All values are claims of the sender, size and
    type too. Only http and https URLs count, at most 20, in the order of the message.
    """
    found: dict[str, Attachment] = {}
    known_urls: dict[str, str] = {}
    left_out: dict[str, None] = {}
    for child in message:
        if child.tag not in LINK_ELEMENTS or not (sources := _read_sources(child)):
            continue
        if (url := next((known_urls[source] for source in sources if source in known_urls), None)) is None:
            url = next(filter(is_link, sources), None) if len(found) < _MAX_ATTACHMENTS else None
            if url is None:
                left_out[sources[0]] = None
                continue
            found[url] = {"url": url, "name": None, "type": None, "size": None, "description": None}
        known_urls.update((source, url) for source in sources if source not in known_urls and is_link(source))
        details = _read_details(child)
        found[url] = {key: details.get(key) if value is None else value for key, value in found[url].items()}
    if not found and not left_out:
        return None
    attachments = [{**attachment, "name": attachment["name"] or file_name_of(url)} for url, attachment in found.items()]
    return LinkedFiles(attachments, len(left_out), "\n".join(found) or next(iter(left_out))[:MAX_URL_CHARACTERS])


def _read_sources(child: Element) -> list[str]:
    """Return where the file of an element is, at most 20 addresses of any kind. Elements without a file have none."""
    if child.tag == OOB:
        sources = [child.findtext(OOB_URL)]
    elif child.tag == REFERENCE:
        elements = child.iterfind(f"{SHARED_MEDIA}/{SHARED_MEDIA_SOURCES}/{REFERENCE}")
        sources = [source.get("uri") for source in islice(elements, _MAX_SOURCES)]
    else:
        # An encrypted source (XEP-0448) has its URL deeper down, and is ignored: the download would not be the file.
        # Dino sends the description of a file at once, and the sources in a second message, when it has uploaded the file.
        path = URL_DATA if child.tag == SHARED_FILE_SOURCES else f"{SHARED_FILE_SOURCES}/{URL_DATA}"
        sources = [source.get("target") for source in islice(child.iterfind(path), _MAX_SOURCES)]
    return [address for source in sources if source is not None and (address := source.strip())]


def _read_details(child: Element) -> Attachment:
    if child.tag == OOB:
        return {"description": _clip_description(child.findtext(OOB_DESC))}
    path = f"{SHARED_MEDIA}/{{*}}file" if child.tag == REFERENCE else f"{FILE_METADATA}file"
    if (file := child.find(path)) is None:
        return {}
    namespace = file.tag.rpartition("}")[0] + "}"  # that of XEP-0234 has a version in it, and Movim's is an older one
    texts = {key: (file.findtext(f"{namespace}{key}") or "").strip() for key in ("name", "media-type", "size", "desc")}
    kind, size = texts["media-type"].lower(), texts["size"]
    return {
        "name": safe_file_name(texts["name"]),
        "type": kind if MEDIA_TYPE.fullmatch(kind) else None,
        "size": int(size) if size.isascii() and size.isdecimal() and len(size) <= _MAX_SIZE_DIGITS else None,
        "description": _clip_description(texts["desc"]),
    }


def _clip_description(text: str | None) -> str | None:
    return (text or "").strip()[:_MAX_DESCRIPTION_CHARACTERS] or None
