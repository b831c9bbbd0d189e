"""The factories of the channels of an agent, by name. Each is called once for each agent, with its bare JID.

XMPP's is not among them, because it comes with the connection of the agent (`xmpp/transport.py`). The agent opens its channels
when it starts, and closes them when it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..runtime import Channel

ChannelFactories: TypeAlias = Mapping[str, Callable[[str], Channel]]

CHANNELS: ChannelFactories = {}
"""The factories for all agents. The inbox stores the name, so a name stays as it is once it is in use."""
