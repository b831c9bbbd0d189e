"""The initiative of an agent: notifications, schedules, and the clock of both."""
