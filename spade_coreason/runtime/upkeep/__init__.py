"""Work beside the requests: expiry, retention, incidents, metrics and status."""
