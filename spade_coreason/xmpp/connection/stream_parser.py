"""How a stream is read: bytes come in, whole stanzas come out."""

from __future__ import annotations

from collections import deque
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

_DTD = b"<!DOCTYPE"


class StreamReader:
    """Reads one stream. The parser, which is in C, says only which element ended last: a stanza costs no call of Python's."""

    def __init__(self) -> None:
        self.header: Element | None = None
        """The stream's own element, as soon as it has come."""
        self.end_reason = ""
        """Why nothing more will come; empty as long as something may."""
        self.is_xml = True
        """Until something was not, before its regular end."""
        self._first_bytes = b""
        self._builder = TreeBuilder()
        self._parser = XMLParser(target=self._builder, encoding="UTF-8")
        self._last_ended: deque[tuple[str, Element]] = deque(maxlen=1)
        # What XMLPullParser is made of. Its own queue would be read in Python, element by element.
        self._parser._setevents(self._last_ended, ("end",))  # type: ignore[attr-defined]  # it has no public name
        # From expat 2.6 on the parser waits, after a tag that was cut between two reads, until twice as much has come; a
        # complete stanza would lie there until then.
        self._flush = getattr(self._parser, "flush", lambda: None)

    def read(self, data: bytes) -> list[Element]:
        """The stanzas that are complete with `data`."""
        if self.header is None and self._has_dtd(data):
            self.end_reason = "its stream begins with a DTD, which XMPP does not know"
            return []
        try:
            self._parser.feed(data)
            self._flush()
        except ParseError as error:
            self.end_reason = f"its stream is no XML: {error}"
            self.is_xml = False
        if self.header is None:
            self.header = self._builder.close()  # closes nothing, and gives what is there
            if self.header is None:
                return []
        return self._pop_complete(self.header)

    def _pop_complete(self, header: Element) -> list[Element]:
        ended = self._last_ended.pop()[1] if self._last_ended else None
        stanzas = header[:]
        if ended is header:
            self.end_reason, self.is_xml = "End of stream", True
        elif stanzas and stanzas[-1] is not ended:
            stanzas.pop()  # the rest of it comes later
        del header[: len(stanzas)]
        return stanzas

    def _has_dtd(self, data: bytes) -> bool:
        """Whether a stream that has not begun brings a DTD (RFC 6120, 11.1): only there could it define entities, which grow.

        Parsers that can be told not to expand them are in Python, and take three times as long.
        """
        self._first_bytes += data
        found = _DTD in self._first_bytes or b"\0" in self._first_bytes  # in UTF-16, which 11.6 does not allow either
        self._first_bytes = self._first_bytes[-len(_DTD) :]
        return found
