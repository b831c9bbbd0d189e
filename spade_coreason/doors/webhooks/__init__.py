"""The door of webhooks: a signed POST starts a turn."""
