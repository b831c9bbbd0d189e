"""One XMPP session that lasts: stream, stream management, send queue, reconnection."""
