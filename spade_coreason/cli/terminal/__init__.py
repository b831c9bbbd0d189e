"""The terminal of a person: console, Markdown, wrapping, QR codes."""
