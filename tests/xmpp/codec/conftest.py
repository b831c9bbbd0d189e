"""SPADE's message classes, to parse our stanzas and to build its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spade_classes() -> Any:
    """`Message` and `Template` of SPADE, and `Stanza`, the message of slixmpp under them."""
    from slixmpp import Message as Stanza
    from spade.message import Message
    from spade.template import Template

    return SimpleNamespace(Stanza=Stanza, Message=Message, Template=Template)
