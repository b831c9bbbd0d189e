"""Real XMPP servers and a stock client for the test suite and the benchmarks."""
