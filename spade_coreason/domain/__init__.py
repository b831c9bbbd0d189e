"""The project's own vocabulary and pure decisions: JIDs, ids, requests, turn events, conversations; no I/O."""
