"""File names that are valid on every system."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

_MAX_NAME_BYTES = 255
_MAX_SUFFIX_BYTES = 32  # what is longer is no suffix, but a sentence with a full stop
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff"
    r"\U000e0000-\U000e0fff]"
)  # and the characters that change the direction of a name, or are invisible
_FORBIDDEN_ON_WINDOWS = re.compile(r'[<>:"|?*]')


def file_name_of(url: str) -> str | None:
    """Return the last segment of a URL's path, decoded, as a safe file name; None without one."""
    try:
        path = urlsplit(url).path
    except ValueError:
        return None
    return safe_file_name(unquote(path.rpartition("/")[2]))


def safe_file_name(text: str) -> str | None:
    """Return `text` as a file name with the characters that every system allows; None if no characters are left.

    Agents store files under this name, so it must never lead out of a directory. A name that is too long keeps its suffix.
    """
    name = _CONTROLS.sub("", text).replace("\\", "/").rpartition("/")[2].strip()
    return None if name in ("", ".", "..") else _shorten(_FORBIDDEN_ON_WINDOWS.sub("_", name))


def _shorten(name: str) -> str:
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    suffix = PurePosixPath(name).suffix
    if len(suffix.encode()) > _MAX_SUFFIX_BYTES:
        suffix = ""
    stem = name.removesuffix(suffix).encode()[: _MAX_NAME_BYTES - len(suffix.encode())]
    return stem.decode(errors="ignore") + suffix
