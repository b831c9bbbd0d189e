"""Stanza to request, events to stanzas: pure, so without a server."""
