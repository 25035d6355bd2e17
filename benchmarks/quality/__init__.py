"""Effects of the adapters on embeddings, reported as sections of RESULTS.md."""
