"""Slash commands and ad-hoc commands (XEP-0050): the platform's and the agents' own."""
