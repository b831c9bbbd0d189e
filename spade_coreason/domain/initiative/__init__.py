"""The initiative of an agent as decisions: due times, and what becomes of notifications. No clock, no I/O."""
