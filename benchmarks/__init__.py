"""Benchmarks of isoadapt: `speed/`, `quality/` and `reproduction/`, each run by `python -m`.

`python -m benchmarks` measures the speed, `python -m benchmarks.quality` what the adapters do to
embeddings; RESULTS.md has the results.
"""
