"""Local XMPP servers: a managed Prosody and an embedded one; both end with the process that started them."""
