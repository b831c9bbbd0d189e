"""Questions to people: a turn asks and ends, and the request runs again with the answer."""
