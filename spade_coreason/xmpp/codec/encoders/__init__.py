"""Turn events to stanzas: one encoder for each channel."""
