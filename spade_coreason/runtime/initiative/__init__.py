"""What an agent does without being asked: notifications, schedules, and the clock of both."""
