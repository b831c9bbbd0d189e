"""The language of a stanza: its `xml:lang` (RFC 6120, 4.7.4)."""

from __future__ import annotations

from functools import lru_cache
from xml.etree.ElementTree import Element

from ...domain.preferences import LANGUAGE_TAG
from .namespaces import LANGUAGE

_match_tag = lru_cache(maxsize=128)(LANGUAGE_TAG.fullmatch)
_MAX_CHARACTERS = 35
"""The most characters of a tag. A longer one must not stay in the cache."""


def read_language(stanza: Element, body: Element | None = None) -> str | None:
    """Return the language tag of the body, else of the stanza. None if there is none, or if it is not valid (BCP 47)."""
    tag = (body is not None and body.get(LANGUAGE)) or stanza.get(LANGUAGE)
    return tag if tag and len(tag) <= _MAX_CHARACTERS and _match_tag(tag) else None
