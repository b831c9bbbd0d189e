"""One turn of an agent: made, run under its time limit, stored, sent."""
