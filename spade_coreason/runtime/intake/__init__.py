"""The way of a message into an agent: access, admission, quotas, repetitions, and the queues of conversations."""
