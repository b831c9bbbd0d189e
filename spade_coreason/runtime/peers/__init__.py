"""Requests between agents: who can be asked, the questions that are open, and their answers."""
