"""The operations on the initiative of agents: notifications and schedules."""
