"""The language of a stanza: its `xml:lang` (RFC 6120, 4.7.4)."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from ...domain.preferences import LANGUAGE_TAG
from .namespaces import LANGUAGE


def read_language(*elements: Element | None) -> str | None:
    """Return the language tag of the first element that has one. None if there is none, or if it is not valid (BCP 47)."""
    for element in elements:
        if element is not None and (tag := element.get(LANGUAGE)):
            return tag if LANGUAGE_TAG.fullmatch(tag) else None
    return None
