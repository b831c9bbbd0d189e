"""Calls of operations between processes."""
