"""Chat rooms (XEP-0045)."""
