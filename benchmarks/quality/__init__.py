"""Effects of the adapters on embeddings: `python -m benchmarks.quality`, a module for each table.

A module has `SECTION`, the name of its part of RESULTS.md; `RECORDS`, its file of finished cells;
`KEY`, the names of the fields of a record that tell which cell it is; `cells()`, which yields each
cell's key with the function that measures it; and `text(records)`, which writes the section.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
Cells = Iterator[tuple[tuple[Any, ...], Callable[[], dict[str, Any]]]]
