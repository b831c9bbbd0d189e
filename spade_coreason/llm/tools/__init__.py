"""Tools that a language model may call."""
