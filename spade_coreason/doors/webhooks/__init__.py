"""The door of webhooks: a signed POST starts a turn, and the answer waits at an address that cannot be guessed."""
