"""Documents, chunks, embeddings and search."""
