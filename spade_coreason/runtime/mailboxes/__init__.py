"""Waiting requests: those of each conversation in their order, with the slots for turns."""
