"""Outgoing messages: the output of a turn, its messages to people, the outbox."""
