"""Utilities for files, folders, devices, threads and optional dependencies."""
