"""What doors store: keys, webhooks, and what callers have of their conversations."""
