"""Forms: fields with values, and the ad-hoc commands (XEP-0050) that people fill in with them."""
