"""The ways in: by messages, by the clock, from the last run; repetitions, and reactions to replies."""
