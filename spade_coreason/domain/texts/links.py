"""Links to files, as people and programs send them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

MAX_URL_CHARACTERS = 2048
MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\xa0]")  # urlsplit removes some of these, so the check would see another URL


def is_link(url: str) -> bool:
    """True for an http or https URL with a host, of at most 2,048 characters."""
    if len(url) > MAX_URL_CHARACTERS or _NOT_IN_A_URL.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, or a port that is no number
        return False
