"""The normalising flow adapter."""
