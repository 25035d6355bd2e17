"""Benchmarks of the speed and quality of isoadapt on the machine they run on.

`python -m benchmarks` measures speed on a CPU, and `python -m benchmarks.speed.gpu` on a GPU.
`python -m benchmarks.quality.embeddings_table` and `python -m benchmarks.quality.few_rows` measure
the effect of the adapters on real embeddings. `python -m benchmarks.reproduction` repeats the
experiments of the papers.
"""
