"""Reproduction of the papers' tables at a small scale: cells, claims and a report."""
