"""The disk cache of embeddings: the public class, keys, requests and the store."""
