"""The commands: in this process where they are pure, as programs where servers and terminals are in it."""
