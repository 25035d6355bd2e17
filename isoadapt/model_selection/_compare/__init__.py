"""Comparison of adapters: compare_adapters, its result, and its parts."""
