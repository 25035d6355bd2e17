"""The disk cache of embeddings: the public class with its requests, and the store."""
