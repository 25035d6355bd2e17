"""Concurrent calls, kills and interrupts, counted with the damage that they do."""
