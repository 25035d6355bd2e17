"""Speed benchmarks: `python -m benchmarks` runs all public modules except `gpu`."""
