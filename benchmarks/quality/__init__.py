"""What the adapters and scores do to embeddings, as sections of RESULTS.md."""
