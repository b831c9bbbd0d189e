"""Guardrails: checks of what goes to a language model and what comes from it."""
