"""Speed and quality figures of isoadapt, measured on the machine at hand.

`python -m benchmarks` measures speed, `python -m benchmarks.embeddings_table` what the adapters do
to real embeddings, `python -m benchmarks.gpu` what needs a GPU.
"""
