"""An A2A agent elsewhere as a peer here: `RemoteA2AAgent` has a JID and passes requests on by A2A 1.0."""

from .agent import RemoteA2AAgent

__all__ = ["RemoteA2AAgent"]
