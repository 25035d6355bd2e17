"""Effects of the adapters on embeddings: `python -m benchmarks.quality`, a module for each table.

A module has `KEY`, the fields of a record that tell which cell it is; `cells()`, which yields each
cell's key with the function that measures it; and `text(frame)`, which makes its section of
RESULTS.md from its records, `results/MODULE.jsonl`. RESULTS.md says how each table was measured.
"""

from collections.abc import Callable, Iterator
from typing import Any

Cells = Iterator[tuple[tuple[Any, ...], Callable[[], dict[str, Any]]]]
