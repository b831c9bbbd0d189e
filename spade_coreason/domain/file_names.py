"""File names that are valid on every system."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

_MAX_NAME_CHARACTERS = 255
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)  # and the characters that reverse the direction of a name


def file_name_of(url: str) -> str | None:
    """Return the last segment of a URL's path, decoded, as a safe file name; None without one."""
    try:
        path = urlsplit(url).path
    except ValueError:
        return None
    return safe_file_name(unquote(path.rpartition("/")[2]))


def safe_file_name(text: str) -> str | None:
    """Return `text` as a file name that is valid on every system; None if no characters are left.

    Agents store files under this name, so it must never lead out of a directory.
    """
    name = _CONTROLS.sub("", text).replace("\\", "/").rpartition("/")[2].strip()
    return None if name in ("", ".", "..") else name[:_MAX_NAME_CHARACTERS]
