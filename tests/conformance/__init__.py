"""The conformance kits of protocols, run against the doors of a real server."""
