"""Put a plain Python agent on any XMPP server."""

__version__ = "0.1.0"
