"""The channels of agents, by name: what makes each for an agent, given its bare JID.

XMPP's is not among them, because it comes with the connection of the agent (`xmpp/transport.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..runtime import Channel

ChannelFactories: TypeAlias = Mapping[str, Callable[[str], Channel]]

CHANNELS: ChannelFactories = {}
"""The channels of all agents. The inbox stores the name, so a name stays as it is once it is in use."""
