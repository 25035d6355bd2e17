"""The normalizing flow: adapter, fitted map and network."""
