"""The training engine of the adapters with a penalty."""
