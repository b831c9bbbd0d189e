"""The only room that does XMPP: the SPADE host, the client, local servers."""

from __future__ import annotations

import os

# Before anything imports slixmpp: it expands XML entities otherwise.
os.environ.setdefault("SLIXMPP_ENABLE_DEFUSEDXML", "true")
