"""The right to ask: contacts and operators, admission of requests, the end of access."""
