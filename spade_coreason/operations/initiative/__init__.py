"""The operations on the initiative of agents: notifications, schedules, questions and topics."""
