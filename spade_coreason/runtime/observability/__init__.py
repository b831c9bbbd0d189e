"""Traces, and the names of turns in the log: the wrappers around requests when one of them is on."""
