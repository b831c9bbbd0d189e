"""Conversations: loaded, ended, deleted by age; and the agent that starts and stops with them."""
