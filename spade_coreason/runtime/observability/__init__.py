"""Metrics, incidents, and traces by OpenTelemetry."""
