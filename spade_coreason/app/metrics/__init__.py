"""The metrics for Prometheus: their names, the collector that reads them, and the HTTP server in a thread."""
