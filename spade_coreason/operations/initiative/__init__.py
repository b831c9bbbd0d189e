"""The operations on the initiative of agents: notifications, schedules and questions."""
