"""Speed and quality figures of isoadapt, measured on the machine at hand.

`python -m benchmarks` measures speed, `python -m benchmarks.speed.gpu` what needs a GPU. `python -m
benchmarks.quality.embeddings_table` and `benchmarks.quality.few_rows` measure what the adapters do
to real embeddings, `python -m benchmarks.reproduction` runs the papers' experiments.
"""
