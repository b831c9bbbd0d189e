"""What waits: the requests of each conversation in their order, with the slots for turns."""
