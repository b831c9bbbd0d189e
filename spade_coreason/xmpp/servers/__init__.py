"""Local XMPP servers: a managed Prosody and an embedded pyjabber. Both end with the process that started them."""
