"""Benchmarks that compare us with others in one run: `python -m benchmarks`."""
