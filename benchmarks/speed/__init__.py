"""Speed figures: each public module is a benchmark of `python -m benchmarks`, but `gpu`."""
