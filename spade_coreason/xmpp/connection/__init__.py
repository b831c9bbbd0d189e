"""A lasting XMPP session: stream, stream management, send queue, reconnection."""
