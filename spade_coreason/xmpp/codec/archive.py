"""Queries to a message archive and their results (XEP-0313, with the pages of XEP-0059)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement

from ...domain.jid import bare_jid
from .namespaces import (
    ARCHIVE_FIN,
    ARCHIVE_NAMESPACE,
    ARCHIVE_RESULT,
    DELAY,
    FORM_FIELD,
    FORM_NAMESPACE,
    FORM_VALUE,
    FORWARDED,
    MESSAGE,
    PAGES_NAMESPACE,
    STANZA_ID,
)


class ArchivedMessage(NamedTuple):
    """One message of an archive.

    It contains the archive's id and time (XEP-0359, XEP-0203), like a message that is delivered late.
    """

    archive_id: str
    message: Element


class ArchivePage(NamedTuple):
    """The end of a page: the id of its last message ("" without one), and True if no page follows."""

    last: str
    is_complete: bool


def archive_query(query_id: str, *, after: str, since: datetime | None, max_messages: int) -> Element:
    """Build a query for the next `max_messages` messages after the id `after`, or for the first ones if it is "".

    None of them is older than `since`.
    """
    query = Element(f"{{{ARCHIVE_NAMESPACE}}}query", {"queryid": query_id})
    form = SubElement(query, f"{{{FORM_NAMESPACE}}}x", {"type": "submit"})
    _field(form, "FORM_TYPE", ARCHIVE_NAMESPACE, {"type": "hidden"})
    if since is not None:
        _field(form, "start", since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    page = SubElement(query, f"{{{PAGES_NAMESPACE}}}set")
    SubElement(page, f"{{{PAGES_NAMESPACE}}}max").text = str(max_messages)
    if after:
        SubElement(page, f"{{{PAGES_NAMESPACE}}}after").text = after
    return query


def newest_query(query_id: str) -> Element:
    """Build a query for the newest message only."""
    query = archive_query(query_id, after="", since=None, max_messages=1)
    SubElement(query[-1], f"{{{PAGES_NAMESPACE}}}before")
    return query


def _field(form: Element, name: str, value: str, attributes: dict[str, str] | None = None) -> None:
    field = SubElement(form, FORM_FIELD, {"var": name, **(attributes or {})})
    SubElement(field, FORM_VALUE).text = value


def read_archived(message: Element, own_jid: str, query_id: str) -> ArchivedMessage | None:
    """Read the message in a result of our query. None if it is no such result.

    Only the archive of our own account (`own_jid`, a bare JID) counts. The server sets the sender, so it cannot be forged.
    """
    result = message.find(ARCHIVE_RESULT)
    if result is None or bare_jid(message.get("from", own_jid)) != own_jid or result.get("queryid") != query_id:
        return None
    forwarded = result.find(FORWARDED)
    archived = forwarded.find(MESSAGE) if forwarded is not None else None
    result_id = result.get("id")
    if forwarded is None or archived is None or not result_id:
        return None
    for forged in [child for child in archived if child.tag == STANZA_ID and child.get("by") == own_jid]:
        archived.remove(forged)
    archived.append(Element(STANZA_ID, {"by": own_jid, "id": result_id}))
    if (delay := forwarded.find(DELAY)) is not None:
        archived.insert(0, delay)
    return ArchivedMessage(result_id, archived)


def is_addressed_to(own_jid: str, message: Element) -> bool:
    """True if a message is from another account to `own_jid` (a bare JID), and not to a room."""
    sender = message.get("from", "")
    return (
        bool(sender)
        and bare_jid(sender) != own_jid
        and bare_jid(message.get("to", own_jid)) == own_jid
        and message.get("type", "normal") in ("normal", "chat")
    )


def read_page(answer: Element) -> ArchivePage:
    """Read the end of a page from the answer to the query (an `<iq/>`)."""
    fin = answer.find(ARCHIVE_FIN)
    if fin is None:
        return ArchivePage("", True)
    return ArchivePage(
        fin.findtext(f"{{{PAGES_NAMESPACE}}}set/{{{PAGES_NAMESPACE}}}last") or "", fin.get("complete") in ("true", "1")
    )
