"""Side-by-side measurements against peers, in one run: `python -m benchmarks`."""
