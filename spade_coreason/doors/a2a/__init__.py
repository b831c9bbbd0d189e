"""The A2A door: each agent behind it is an agent of the protocol A2A 1.0."""
