"""Documents, passages, embeddings and search."""
