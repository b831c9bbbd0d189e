"""The text of an answer as its events come."""

from __future__ import annotations

from typing import Any

from spade_coreason import PeerEvent
from spade_coreason.cli.answers import AnswerPiece, AnswerText


def feed_all(*events: tuple[str, dict[str, Any]]) -> list[str]:
    text = AnswerText()
    return [text.feed(PeerEvent(kind, data)) for kind, data in events]


def chunk(stream: str, text: str) -> tuple[str, dict[str, Any]]:
    return "stream.chunk", {"stream_id": stream, "seq": 0, "chunk": text}


def end(stream: str) -> tuple[str, dict[str, Any]]:
    return "stream.end", {"stream_id": stream}


DONE: tuple[str, dict[str, Any]] = ("request.completed", {})


def test_a_stream_is_written_as_it_comes() -> None:
    assert feed_all(chunk("a", "one "), chunk("a", "two "), end("a"), DONE) == ["one", " two", "", ""]


def test_parts_have_a_blank_line_between_them() -> None:
    block = ("block.markdown", {"content": "one"})
    assert feed_all(block, chunk("a", "two"), end("a"), block, DONE) == ["one", "\n\ntwo", "", "\n\none", ""]


def test_a_second_stream_waits_until_the_first_is_complete() -> None:
    events = [chunk("a", "A1 "), chunk("b", "B1 "), chunk("a", "A2"), end("a"), chunk("b", "B2"), end("b"), DONE]
    assert "".join(feed_all(*events)) == "A1 A2\n\nB1 B2"


def test_a_block_that_comes_in_the_middle_of_a_stream_is_written_behind_it() -> None:
    events = [chunk("a", "A1 "), ("block.markdown", {"content": "block"}), chunk("a", "A2"), end("a"), DONE]
    assert "".join(feed_all(*events)) == "A1 A2\n\nblock"


def test_streams_that_never_end_are_written_when_the_answer_ends() -> None:
    assert "".join(feed_all(chunk("a", "A"), chunk("b", "B"), DONE)) == "A\n\nB"


def test_an_aborted_stream_says_why() -> None:
    assert "".join(feed_all(chunk("a", "one"), ("stream.abort", {"stream_id": "a", "reason": "tired"}), DONE)) == (
        "one… (interrupted: tired)"
    )


def test_the_replacement_of_a_stream_is_written() -> None:
    replaced = ("stream.abort", {"stream_id": "a", "reason": "kept back", "replacement": "I keep it."})
    assert "".join(feed_all(chunk("a", "one"), replaced, DONE)) == "one… (kept back)\n\nI keep it."
    assert "".join(feed_all(replaced, DONE)) == "I keep it."
    assert "".join(feed_all(chunk("b", "B"), chunk("a", "one"), replaced, end("b"), DONE)) == "B\n\nI keep it."


def test_control_characters_never_reach_a_terminal() -> None:
    assert "".join(feed_all(("block.markdown", {"content": "\x1b[31mred\x9b1m\a\ttab\nline"}))) == "[31mred1m\ttab\nline"


def test_white_space_alone_is_no_text() -> None:
    assert feed_all(chunk("a", "  \n"), end("a"), ("block.markdown", {"content": " "}), DONE) == ["", "", "", ""]


def test_data_is_shown_as_its_view_hint_says() -> None:
    block = {"block_type": "DATA", "data": {"items": ["a", "b"]}, "view_hint": "LIST", "title": "Things"}
    assert feed_all(("block.data", block)) == ["**Things**\n\n- a\n- b"]


def test_the_title_and_the_code_of_data_are_markdown_so_that_a_terminal_shows_no_marks() -> None:
    text = AnswerText()
    event = PeerEvent("block.data", {"data": {"a": "*1*"}, "title": "Things", "view_hint": "JSON"})
    code = '```\n{\n  "a": "*1*"\n}\n```'
    assert text.feed_pieces(event) == [AnswerPiece("", "**Things**", True), AnswerPiece("\n\n", code, True)]
    event = PeerEvent("block.data", {"data": {"a": "*1*"}, "title": "a_b *c*", "view_hint": "KEY_VALUE"})
    assert text.feed_pieces(event) == [AnswerPiece("\n\n", "a_b *c*", False), AnswerPiece("\n\n", "a: *1*", False)]
    assert text.feed_pieces(PeerEvent("block.data", {"data": "odd", "title": None})) == [AnswerPiece("\n\n", "odd", False)]
