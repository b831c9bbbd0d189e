"""One of several workers: its share of the agents, its look for the server, and what it asks the others."""
