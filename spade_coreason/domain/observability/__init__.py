"""The vocabulary of traces and of the log of a turn: no library of traces is imported here."""
