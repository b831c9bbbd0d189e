"""A stream is read stanza by stanza, however the bytes come in."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

import pytest

from spade_coreason.xmpp.connection.stream_parser import StreamReader

HEADER = (
    "<?xml version='1.0'?><stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' id='x'"
    " xml:lang='de'>"
)
END = "</stream:stream>"
MESSAGE = "{jabber:client}message"


def _message(text: str) -> str:
    return f"<message id='m'><body>{text}</body><x xmlns='urn:x'><y/>z</x></message>"


def _read(reader: StreamReader, pieces: Iterable[bytes]) -> list[Element]:
    return [stanza for piece in pieces for stanza in reader.read(piece)]


def _texts(stanzas: list[Element]) -> list[str | None]:
    return [stanza.findtext("{jabber:client}body") for stanza in stanzas]


@pytest.mark.parametrize("piece_size", [1, 2, 7, 100, 10_000])
def test_stanzas_are_the_same_in_whatever_pieces_they_come(piece_size: int) -> None:
    data = (HEADER + "\n" + _message("Grüße") + " \n " + _message("") + _message("&lt;b&gt;") + "<r xmlns='urn:sm'/>").encode()
    reader = StreamReader()
    stanzas = _read(reader, (data[begin : begin + piece_size] for begin in range(0, len(data), piece_size)))
    assert [stanza.tag for stanza in stanzas] == [MESSAGE, MESSAGE, MESSAGE, "{urn:sm}r"]
    assert _texts(stanzas[:3]) == ["Grüße", "", "<b>"]
    extension = stanzas[0].find("{urn:x}x")
    assert extension is not None
    assert tostring(extension, "unicode") == '<ns0:x xmlns:ns0="urn:x"><ns0:y />z</ns0:x>'
    assert reader.header is not None
    assert reader.header.attrib == {"id": "x", "{http://www.w3.org/XML/1998/namespace}lang": "de"}
    assert len(reader.header) == 0  # nothing is kept of what was read
    assert reader.end_reason == ""


def test_a_stanza_is_read_when_it_is_complete_and_not_before() -> None:
    reader = StreamReader()
    assert reader.read(HEADER.encode()) == []
    assert reader.read(b"<message><body>one") == []
    assert reader.read(b" and") == []
    assert reader.read(b" two</body>") == []
    assert _texts(reader.read(b"</message><message><body>three</body></message><message>")) == ["one and two", "three"]
    assert reader.read(b"") == []
    assert _texts(reader.read(b"<body>four</body></message>\n")) == ["four"]
    assert reader.read(b" ") == []


def test_a_long_stanza_is_read_with_its_last_byte() -> None:
    """From expat 2.6 on the parser waits for more after a long piece, if it is let."""
    reader = StreamReader()
    long = "w" * 100_000
    data = (HEADER + _message(long)).encode()
    assert _texts(_read(reader, (data[:70_000], data[70_000:-1]))) == []
    assert _texts(reader.read(data[-1:])) == [long]


@pytest.mark.parametrize("piece_size", [1, 10_000])
def test_stanzas_before_the_end_of_a_stream_are_read(piece_size: int) -> None:
    data = (HEADER + _message("a") + _message("b") + END).encode()
    reader = StreamReader()
    stanzas = _read(reader, (data[begin : begin + piece_size] for begin in range(0, len(data), piece_size)))
    assert _texts(stanzas) == ["a", "b"]
    assert reader.end_reason == "End of stream"
    assert reader.is_xml


def test_data_after_the_end_of_a_stream_are_ignored() -> None:
    reader = StreamReader()
    assert _texts(reader.read((HEADER + _message("a") + END + "<x/>").encode())) == ["a"]
    assert (reader.end_reason, reader.is_xml) == ("End of stream", True)


def test_stanzas_before_invalid_xml_are_read() -> None:
    reader = StreamReader()
    stanzas = reader.read((HEADER + _message("a") + "<message><body>b</message>" + _message("c")).encode())
    assert _texts(stanzas) == ["a"]
    assert reader.end_reason.startswith("its stream is not XML: mismatched tag")
    assert not reader.is_xml


@pytest.mark.parametrize("data", ["HTTP/1.1 400 Bad Request\r\n", "<?xml version='1.0'?>&"])
def test_data_that_are_no_stream_are_rejected(data: str) -> None:
    reader = StreamReader()
    assert reader.read(data.encode()) == []
    assert reader.header is None
    assert not reader.is_xml


def test_a_declared_encoding_changes_nothing() -> None:
    reader = StreamReader()
    data = HEADER.replace("?>", " encoding='iso-8859-1'?>") + _message("Grüße")
    assert _texts(reader.read(data.encode())) == ["Grüße"]


# Stanzas without an end

LIMIT = 2**17
ENDLESS = {
    "text": b"x" * 2**14,
    "elements": b"<y/>" * 2**12,
    "elements with text": b"<y a='1'><z>text</z></y> text " * 2**9,
}


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        (b"<message id='long'>", b"</message>"),
        (b"<message id='long'><body>", b"</body></message>"),
        (b"<message id='long'><a><b/>text<c>", b"</c></a></message>"),
    ],
)
@pytest.mark.parametrize("content", list(ENDLESS))
def test_a_stanza_that_is_too_long_takes_no_memory_and_the_next_one_is_read(
    opening: bytes, closing: bytes, content: str
) -> None:
    reader = StreamReader(LIMIT)
    reader.read(HEADER.encode() + opening)
    piece = ENDLESS[content]
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(0, 2 * LIMIT, len(piece)):
                assert reader.read(piece) == []
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[0]
    [stanza, following] = reader.read(closing + _message("after").encode())
    assert stanza is reader.discarded
    assert (stanza.tag, stanza.get("id"), len(stanza)) == (MESSAGE, "long", 0)
    assert _texts([following]) == ["after"]
    assert _texts(reader.read(_message("later").encode())) == ["later"]
    assert reader.end_reason == ""


def test_the_limit_of_a_stanza_counts_no_other_stanza_and_no_white_space() -> None:
    reader = StreamReader(LIMIT)
    reader.read(HEADER.encode())
    for _ in range(5):
        assert _texts(reader.read(_message("x" * (LIMIT // 2)).encode())) == ["x" * (LIMIT // 2)]
        for _ in range(20):
            assert reader.read(b" " * (LIMIT // 10)) == []
    assert reader.discarded is None
    assert reader.end_reason == ""


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        (b"<message a='", b"a" * 2**14),
        (b"<message><b a='", b"a" * 2**14),
        (b"<message>", b"<a>" * 2**12),
        (b"<message>", b"a" * 2**14),
    ],
    ids=["tag", "inner tag", "elements", "text"],
)
def test_a_stanza_that_does_not_end_ends_its_stream(opening: bytes, piece: bytes) -> None:
    reader = StreamReader(LIMIT)
    reader.read(HEADER.encode() + opening)
    read_count = 0
    while not reader.end_reason:
        reader.read(piece)
        read_count += 1
        assert read_count * len(piece) < 12 * LIMIT
    assert "does not end" in reader.end_reason
    assert reader.is_xml


def test_a_stream_that_does_not_begin_ends() -> None:
    reader = StreamReader(LIMIT)
    reader.read(b"<stream:stream a='")
    read_count = 0
    while not reader.end_reason:
        assert reader.read(b"a" * 2**14) == []
        read_count += 1
        assert read_count * 2**14 < 2 * LIMIT
    assert reader.end_reason == "its stream does not begin"


@pytest.mark.parametrize(("end", "reason"), [(END, "End of stream"), ("</other>", "its stream is not XML")])
def test_a_stream_may_end_where_its_white_space_is_too_much(end: str, reason: str) -> None:
    reader = StreamReader(LIMIT)
    reader.read(HEADER.encode())
    assert reader.read(b" " * LIMIT) == []
    assert reader.read(end.encode()) == []
    assert reader.end_reason.startswith(reason)
    assert reader.read(b" " * LIMIT) == []
