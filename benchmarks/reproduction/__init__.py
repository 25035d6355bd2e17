"""The papers' tables, reproduced in small: cells to run, claims to judge, a report to read."""
