"""The page in the browser: people chat there with the agents, without an XMPP client."""
