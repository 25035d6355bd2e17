"""Utilities for files, folders, devices, threads, optional dependencies and messages."""
