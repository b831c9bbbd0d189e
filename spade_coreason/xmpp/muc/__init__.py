"""Chat rooms (XEP-0045): joining, occupants, messages, and the reactions to a lost place."""
