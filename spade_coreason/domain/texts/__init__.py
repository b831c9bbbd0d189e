"""Texts and JSON: languages, translation, errors, and what a model or a terminal may get."""
