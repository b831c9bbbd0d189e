"""The addressee of a message in a room: the name that it begins with, or the occupants that it refers to (XEP-0372)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from .namespaces import REFERENCE

# Marks of direction and marks without a width. People who copy or complete a name add them without seeing them.
_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
_MARKS = re.compile(f"[{_INVISIBLE}]+")
_BLANKS = re.compile(rf"\A[\s{_INVISIBLE}]+")
_AT = "[@＠]"
_SEPARATOR = "[:,：，、،]"
_AFTER_MENTION = re.compile(rf"[\s{_INVISIBLE}]*{_SEPARATOR}|(?=[\s{_INVISIBLE}])")

_MAX_NAME_CHARACTERS = 2000  # a nickname has at most 1,023 bytes, and marks come in between
_MAX_MENTIONS = 20
_MAX_URI_CHARACTERS = 10_000  # a JID has at most 3,071 bytes, and each may be written with three characters
_MAX_DIGITS = 9


class Mention(NamedTuple):
    """A reference of a message to a person (XEP-0372), and the part of the text that names this person."""

    uri: str
    """The URI as received, such as `xmpp:room@conference.example.org/Alice`; "" without one."""
    begin: int | None = None
    """The position of the first code point; None if the reference has no valid range."""
    end: int = 0


def read_mentions(message: Element, body: str, text: str) -> tuple[Mention, ...]:
    """Read the mentions of a message, at most 20. `text` is the `body` without a quote; mentions in the quote are left out."""
    found: list[Mention] = []
    shift = len(body) - len(text)
    for reference in message.iterfind(REFERENCE):
        uri = reference.get("uri", "")
        if reference.get("type") != "mention" or len(uri) > _MAX_URI_CHARACTERS or len(found) == _MAX_MENTIONS:
            continue
        begin, end = _read_position(reference.get("begin", "")), _read_position(reference.get("end", ""))
        if begin is None or end is None or not begin < end <= len(body) or not body.endswith(text):
            found.append(Mention(uri))
        elif begin >= shift:
            found.append(Mention(uri, begin - shift, end - shift))
    return tuple(found)


def _read_position(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def extract_question(
    nick: str,
    text: str,
    others: Collection[str] = (),
    mentions: Collection[Mention] = (),
    *,
    room: str = "",
    agent: str = "",
) -> str | None:
    """Return the part of `text` after its address to `nick`. None if it is not addressed to `nick`.

    An address is "nick: …", "nick, …" or "@nick …", in any letter case. It is also a mention that refers to the occupant
    `nick` of `room`, or to the bare JID `agent`: converse.js takes out the @, and adds a mention. A mention of another person
    at the beginning is no address, whatever it reads. `others` are the nicknames of the other occupants. If several nicknames
    match, the text is for the one that it contains exactly, and of these for the longest.

    Names are compared in Unicode's form NFC, without marks of direction and marks without a width. What remains is as it
    was written, and whole if the mention is not at its beginning.
    """
    if not mentions:
        return _strip_address(nick, text, others)
    start = len(text) - len(_strip_blanks(text))
    is_mentioned = is_of_another = False
    for mention in mentions:
        is_first = mention.begin is not None and mention.begin <= start < mention.end
        if not _refers_to(mention, nick, text, others, room, agent):
            is_of_another = is_of_another or is_first
            continue
        is_mentioned = True
        if is_first or mention.begin is None:
            question = _strip_name(nick, text)
            if question is None and is_first:
                question = _strip_range(text, mention.end)
            if question is not None:
                return question
    question = _strip_address(nick, text, others) if not is_of_another else None
    return question if question is not None or not is_mentioned else text.strip()


def _refers_to(mention: Mention, nick: str, text: str, others: Collection[str], room: str, agent: str) -> bool:
    """Return True if a mention refers to the agent: as an occupant, by its bare JID, or by its nickname."""
    if not mention.uri:
        if mention.begin is None:
            return False
        return _is_name(text[mention.begin : mention.end].strip().lstrip("@＠"), nick, others)
    scheme, _, path = mention.uri.partition(":")
    written = path if scheme.lower() == "xmpp" else mention.uri
    # A nickname may contain a question mark or a #. Not every client encodes them.
    for address in (unquote(written), unquote(re.split(r"[?#]", written, maxsplit=1)[0])):
        jid, slash, name = address.partition("/")
        if slash and jid.lower() == room:
            is_own = _is_name(name, nick, others)
        elif "@" in jid:
            is_own = jid.lower() == agent.lower()
        else:
            is_own = _is_name(address, nick, others)
        if is_own:
            return True
    return False


def _is_name(name: str, nick: str, others: Collection[str]) -> bool:
    return name == nick or (name not in others and _canonical(name) == _canonical(nick))


def _canonical(text: str) -> str:
    """Return a text in the form in which names are compared."""
    return text if text.isascii() else unicodedata.normalize("NFC", _MARKS.sub("", text))


def _beginning(text: str) -> str:
    """Return the part of a text in which its address is."""
    return text[: len(text) - len(text.lstrip()) + _MAX_NAME_CHARACTERS]


def _strip_address(nick: str, text: str, others: Collection[str]) -> str | None:
    beginning, name = _beginning(text), _canonical(nick)
    compared = _canonical(beginning)
    found = _match_address(name, compared, re.IGNORECASE)
    if found is None:
        return None
    is_exact = _match_address(name, compared) is not None
    stripped = compared.lstrip()
    for other in others:
        # A room may have a thousand occupants, and a regular expression for each of them would take long.
        other_name = other if other.isascii() else _canonical(other)
        if other == nick or not stripped.startswith((other_name.lstrip(), f"@{other_name}", f"＠{other_name}")):
            continue
        if _match_address(other_name, compared) is not None and (
            not is_exact
            or len(other_name) > len(name)
            # A name that only looks like the agent's: the text has one of the two as it is written.
            or (other_name == name and _match_address(other, beginning) and not _match_address(nick, beginning))
        ):
            return None
    return _cut(text, beginning, compared, found)


def _match_address(nick: str, text: str, flags: int = 0) -> re.Match[str] | None:
    return re.match(rf"{_name_pattern(nick)}(?:\s*{_SEPARATOR}|(?(1)(?=\s|$)|(?!)))", text, flags)


def _name_pattern(nick: str) -> str:
    """Return a pattern for a name at the beginning of a text. Its group 1 is the mark before the name."""
    # A name that begins with blanks is not looked for at each blank of the text.
    name = nick.lstrip()
    blanks = re.escape(nick[: -len(name) or None])
    return rf"\s*+(?:(?<={blanks})|({_AT}){blanks}){re.escape(name)}"


def _strip_name(nick: str, text: str) -> str | None:
    """Return the part of `text` after `nick` at its beginning, where a mention says that it is the agent's name."""
    beginning = _beginning(text)
    compared = _canonical(beginning)
    found = re.match(rf"{_name_pattern(_canonical(nick))}(?:\s*{_SEPARATOR}|(?=\s|$))", compared, re.IGNORECASE)
    return _cut(text, beginning, compared, found) if found is not None else None


def _strip_range(text: str, end: int) -> str | None:
    """Return the part of `text` after a mention that ends at `end`. None if it ends within a word, or nothing is left."""
    found = _AFTER_MENTION.match(text, end)
    return (_strip_blanks(text[found.end() :]).rstrip() or None) if found is not None else None


def _cut(text: str, beginning: str, compared: str, found: re.Match[str]) -> str:
    """Return what is after a match in the compared form of the beginning, as it was written."""
    end = found.end()
    if compared is not beginning:
        end = next(end for end in range(len(beginning) + 1) if _canonical(beginning[:end]) == found[0])
    return _strip_blanks(text[end:]).rstrip()


def _strip_blanks(text: str) -> str:
    """Return a text without the blanks and invisible marks at its beginning."""
    return _BLANKS.sub("", text, count=1)
