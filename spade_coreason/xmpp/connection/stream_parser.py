"""The parser of a stream: bytes in, complete stanzas out. And the limits of a stanza from another account."""

from __future__ import annotations

from collections import deque
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

STANZAS = ("{jabber:client}iq", "{jabber:client}message", "{jabber:client}presence")
_DTD = b"<!DOCTYPE"

MAX_DEPTH = 64
"""The most elements within each other, the stanza included. slixmpp recurses once or more for each."""
MAX_ELEMENTS = 10_000
MAX_ATTRIBUTES = 256
"""The most attributes of one element."""
MAX_STANZA_BYTES = 8 * 2**20
"""The most bytes of a stanza from anywhere, to the size of one read. Servers accept fewer from their users."""
TOO_LONG = f"more than {MAX_STANZA_BYTES} bytes"
_MAX_DISCARDED = 8  # times the most bytes of a stanza
_MAX_OPEN_ELEMENTS = 1000


class StreamReader:
    """The reader of one stream. The parser, written in C, reports only the last ended element: no Python call for a stanza.

    Of a stanza with more than `max_stanza_bytes` the content is discarded.
    """

    def __init__(self, max_stanza_bytes: int = MAX_STANZA_BYTES) -> None:
        self.header: Element | None = None
        """The stream's own element, as soon as it was received."""
        self.end_reason = ""
        """The reason why the stream has ended; empty until then."""
        self.is_xml = True
        """False if the stream broke off with malformed XML, before its regular end."""
        self.discarded: Element | None = None
        """The last stanza that was too long: its attributes, without its content."""
        self.excess: dict[Element, str] = {}
        """The excess of complete stanzas, see `find_excess`. Their handler removes it."""
        self._max_stanza_bytes = max_stanza_bytes
        self._unfinished_bytes = 0
        self._discarded_bytes = 0
        self._first_bytes = b""
        self._builder = TreeBuilder()
        self._parser = XMLParser(target=self._builder, encoding="UTF-8")
        self._last_ended: deque[tuple[str, Element]] = deque(maxlen=1)
        # XMLPullParser uses this method too, but reads its own queue in Python, element by element.
        self._parser._setevents(self._last_ended, ("end",))  # type: ignore[attr-defined]  # it has no public name
        # Since expat 2.6 the parser waits, after a tag that was cut between two reads, until twice as much data has come.
        # A complete stanza would not be returned until then.
        self._flush = getattr(self._parser, "flush", lambda: None)

    def read(self, data: bytes) -> list[Element]:
        """Return the stanzas that are complete with `data`."""
        if self.header is None and self._has_dtd(data):
            self.end_reason = "its stream begins with a DTD, which XMPP forbids"
            return []
        try:
            self._parser.feed(data)
            self._flush()
        except ParseError as error:
            self.end_reason = f"its stream is not XML: {error}"
            self.is_xml = False
        if self.header is None:
            self.header = self._builder.close()  # this closes nothing, and returns the root element so far
        stanzas = self._pop_complete(self.header) if self.header is not None else []
        if stanzas:
            self._unfinished_bytes = self._discarded_bytes = 0
            if stanzas[0] is self.discarded:
                del stanzas[0][:]
            for stanza in stanzas:
                if stanza.tag in STANZAS and (excess := find_excess(stanza)):
                    self.excess[stanza] = excess
        elif not self.end_reason:
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > self._max_stanza_bytes:
                self._discard_unfinished()
        return stanzas

    def _pop_complete(self, header: Element) -> list[Element]:
        ended = self._last_ended.pop()[1] if self._last_ended else None
        stanzas = header[:]
        if ended is header:
            self.end_reason, self.is_xml = "End of stream", True
        elif stanzas and stanzas[-1] is not ended:
            stanzas.pop()  # it is incomplete
        del header[: len(stanzas)]
        return stanzas

    def _discard_unfinished(self) -> None:
        """Free the memory of a stanza that is too long already. It ends the stream only if that is not possible.

        A server delivers a stanza again if the stream ends at it, so the stanza has to pass.
        """
        header = self.header
        if header is None:
            self.end_reason = "its stream does not begin"
            return
        self._discarded_bytes += self._unfinished_bytes
        self._unfinished_bytes = 0
        # The builder holds a text back until the next tag. So it gets an element of ours, within the innermost open one.
        self._last_ended.clear()
        self._builder.start("", {})
        self._builder.end("")
        [(_, ours)] = self._last_ended
        self._last_ended.clear()
        element, level = header, 0
        while len(element):  # the open elements are each the last child of the other; the last of all is ours
            del element[:-1]
            element.text = None
            element = element[-1]
            element.tail = None
            level += 1
        if header[-1] is ours:
            del header[-1]  # it is white space, or the first tag of a stanza
        else:
            self.discarded = header[-1]
        # What may still grow is one tag, or the number of open elements.
        if self._discarded_bytes > _MAX_DISCARDED * self._max_stanza_bytes or level > _MAX_OPEN_ELEMENTS:
            self.end_reason = f"a stanza of {TOO_LONG} does not end"

    def _has_dtd(self, data: bytes) -> bool:
        """Return True if the start of a stream contains a DTD (RFC 6120, 11.1).

        Only a DTD can define entities, which expand without limit. Parsers with an option not to expand them are written in
        Python, and take three times as long.
        """
        self._first_bytes += data
        found = _DTD in self._first_bytes or b"\0" in self._first_bytes  # a null byte means UTF-16, forbidden by 11.6
        self._first_bytes = self._first_bytes[-len(_DTD) :]
        return found


def find_excess(stanza: Element) -> str:
    """Return what a stanza has too much of, such as "more than 64 levels"; "" if it is within the limits."""
    elements = list(stanza.iter())
    if len(elements) > MAX_DEPTH:  # with fewer it cannot be too deep; nearly every stanza has fewer
        if len(elements) > MAX_ELEMENTS:
            return f"more than {MAX_ELEMENTS} elements"
        if _is_too_deep(stanza):
            return f"more than {MAX_DEPTH} levels"
    for element in elements:
        if len(element.keys()) > MAX_ATTRIBUTES:  # `attrib` would make a dict for an element that has none
            return f"more than {MAX_ATTRIBUTES} attributes"
    return ""


def _is_too_deep(stanza: Element) -> bool:
    level = [stanza]
    for _ in range(MAX_DEPTH):
        level = [child for element in level for child in element]
        if not level:
            return False
    return True
