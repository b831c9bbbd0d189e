"""The durable steps of a turn, and the request and the journal of this task."""
