"""The engine that trains adapters under a penalty."""
