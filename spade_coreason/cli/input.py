"""What a person asks, as text that can be sent: from an argument, or from standard input."""

from __future__ import annotations

import sys

from ..exceptions import ConfigError

STANDARD_INPUT = "standard input"


def check_encoding(text: str, place: str) -> str:
    """An argument; ConfigError if what was typed is not in the encoding of the terminal."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python keeps such bytes as surrogates
        raise _encoding_error(place, sys.getfilesystemencoding()) from error
    return text


def decode_input(raw: bytes, place: str = STANDARD_INPUT) -> str:
    """What was read from standard input, without white space around it; ConfigError if it is not in its encoding."""
    try:
        return raw.decode(sys.stdin.encoding).strip()
    except UnicodeDecodeError as error:
        raise _encoding_error(place, sys.stdin.encoding) from error


def _encoding_error(place: str, encoding: str) -> ConfigError:
    return ConfigError(place, f"is not {encoding.upper()}; convert it before (iconv -t {encoding.upper()})")
