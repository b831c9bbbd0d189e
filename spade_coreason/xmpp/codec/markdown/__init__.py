"""Markdown to Message Styling (XEP-0393)."""
