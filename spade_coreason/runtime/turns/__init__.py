"""One turn of an agent: its steps, its response and the output that leaves it."""
