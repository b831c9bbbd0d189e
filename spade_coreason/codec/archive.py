"""What is asked of an archive of messages, and what it says (XEP-0313, with the pages of XEP-0059)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement

from ..domain.jid import bare
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


class Archived(NamedTuple):
    """One message of an archive. It has the archive's id and time in it (XEP-0359, 0203), as one that is delivered late."""

    archive_id: str
    message: Element


class Page(NamedTuple):
    """The end of a page: the id of its last message, "" where it has none, and whether nothing comes after it."""

    last: str
    is_complete: bool


def archive_id(message: Element, by: str) -> str:
    """The id under which the archive of `by` (a bare JID) keeps a message; "" where it has none."""
    for child in message:
        if child.tag == STANZA_ID and child.get("by") == by:
            return child.get("id", "")
    return ""


def archive_query(query_id: str, *, after: str, since: datetime | None, most: int) -> Element:
    """The query for the `most` messages that come next `after` an id, or from the first on, none older than `since`."""
    query = Element(f"{{{ARCHIVE_NAMESPACE}}}query", {"queryid": query_id})
    form = SubElement(query, f"{{{FORM_NAMESPACE}}}x", {"type": "submit"})
    _field(form, "FORM_TYPE", ARCHIVE_NAMESPACE, {"type": "hidden"})
    if since is not None:
        _field(form, "start", since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    page = SubElement(query, f"{{{PAGES_NAMESPACE}}}set")
    SubElement(page, f"{{{PAGES_NAMESPACE}}}max").text = str(most)
    if after:
        SubElement(page, f"{{{PAGES_NAMESPACE}}}after").text = after
    return query


def newest_query(query_id: str) -> Element:
    """The query for the newest message alone."""
    query = archive_query(query_id, after="", since=None, most=1)
    SubElement(query[-1], f"{{{PAGES_NAMESPACE}}}before")
    return query


def _field(form: Element, name: str, value: str, attributes: dict[str, str] | None = None) -> None:
    field = SubElement(form, FORM_FIELD, {"var": name, **(attributes or {})})
    SubElement(field, FORM_VALUE).text = value


def read_archived(message: Element, own: str, query_id: str) -> Archived | None:
    """The message that an answer to our query carries; None where it is no such answer.

    Only the archive of our own account counts (`own`, a bare JID): the server says who sends, so nobody can say it for it.
    """
    result = message.find(ARCHIVE_RESULT)
    if result is None or bare(message.get("from", own)) != own or result.get("queryid") != query_id:
        return None
    forwarded = result.find(FORWARDED)
    kept = forwarded.find(MESSAGE) if forwarded is not None else None
    ident = result.get("id")
    if forwarded is None or kept is None or not ident:
        return None
    for forged in [child for child in kept if child.tag == STANZA_ID and child.get("by") == own]:
        kept.remove(forged)
    kept.append(Element(STANZA_ID, {"by": own, "id": ident}))
    if (delay := forwarded.find(DELAY)) is not None:
        kept.insert(0, delay)
    return Archived(ident, kept)


def is_sent_to(own: str, message: Element) -> bool:
    """Whether a message is one that somebody else sent to `own` (a bare JID), and not to a room."""
    sender = message.get("from", "")
    return (
        bool(sender)
        and bare(sender) != own
        and bare(message.get("to", own)) == own
        and message.get("type", "normal") in ("normal", "chat")
    )


def read_page(answer: Element) -> Page:
    """The end of a page, from the answer to the query (an `<iq/>`)."""
    fin = answer.find(ARCHIVE_FIN)
    if fin is None:
        return Page("", True)
    return Page(fin.findtext(f"{{{PAGES_NAMESPACE}}}set/{{{PAGES_NAMESPACE}}}last") or "", fin.get("complete") in ("true", "1"))
