"""The demonstration: its script and its scripted language model."""
