"""What an agent does without being asked: notifications, schedules, and their clock."""
