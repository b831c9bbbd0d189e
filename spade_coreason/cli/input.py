"""What a person asks, as text that can be sent: from an argument, or from standard input."""

from __future__ import annotations

import sys

from ..exceptions import ConfigError

PLACE = "standard input"


def as_given(text: str, place: str) -> str:
    """An argument; ConfigError if what was typed is not in the encoding of the terminal."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python keeps such bytes as surrogates
        raise _unreadable(place, sys.getfilesystemencoding()) from error
    return text


def decoded(raw: bytes, place: str = PLACE) -> str:
    """What was read from standard input, without white space around it; ConfigError if it is not in its encoding."""
    try:
        return raw.decode(sys.stdin.encoding).strip()
    except UnicodeDecodeError as error:
        raise _unreadable(place, sys.stdin.encoding) from error


def _unreadable(place: str, encoding: str) -> ConfigError:
    return ConfigError(place, f"is not {encoding.upper()}; convert it before (iconv -t {encoding.upper()})")
