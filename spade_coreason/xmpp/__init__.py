"""The only room that does XMPP: the SPADE host, the client, local servers."""

from __future__ import annotations
