"""The demo: its script and its language model."""
