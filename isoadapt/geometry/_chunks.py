"""Embeddings in chunks: iterables of matrices, memory maps, dask arrays and moments."""

import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.copies import are_copies, copy_hashes, first_of_equal
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import warn
from isoadapt.geometry._moments import Moments

_ENTRIES = 2**20  # entries that are read at a time
_SCATTERED = 256  # rows by index of a memory map that are read at a time: each maps up to 64 KiB
_FAN_IN = 8  # instances of Moments that one dask task merges
FLOATS = [np.float64, np.float32]

Chunked = ArrayLike | Iterable[ArrayLike] | Moments
Check = Callable[[Any, bool], NDArray[Any]]  # arguments: a chunk, and whether it is the first


def is_dask(X: Any) -> bool:
    """Whether X is a dask array; does not import dask."""
    array = sys.modules.get("dask.array")
    return array is not None and isinstance(X, array.Array)


def is_memmap(X: Any) -> bool:
    """Whether X is a memory-mapped matrix, such as ``numpy.load(path, mmap_mode="r")`` returns."""
    return isinstance(X, np.memmap) and X.ndim == 2


def in_chunks(X: Any) -> bool:
    """Whether X gives its rows in chunks, such as a list of matrices, or only their moments."""
    if isinstance(X, Moments | Iterator) or is_dask(X):
        return True
    if isinstance(X, list | tuple):
        return len(X) > 0 and len(getattr(X[0], "shape", ())) == 2
    sized = isinstance(X, Sequence | Mapping | Set | torch.Tensor) or hasattr(X, "shape")
    sized = sized or hasattr(X, "dask")  # a bag
    return isinstance(X, Iterable) and not sized and not hasattr(X, "__array__")


def refuse_chunks(X: Any, why: str) -> None:
    """Raise TypeError if X comes in chunks; the clause `why` says what needs all rows at once."""
    if not in_chunks(X):
        return
    alternative = "np.concatenate(list(chunks))"
    if isinstance(X, Moments):
        alternative = "the embeddings whose moments these are"
    elif is_dask(X):
        alternative = "X.compute()"
    raise TypeError(f"X is {describe_chunks(X)}, but {why}: pass one matrix, such as {alternative}")


def describe_chunks(X: Any) -> str:
    """Describe X for error messages: its type with the article, or its representation."""
    if is_dask(X):
        return "a dask array"
    return f"a {type(X).__name__} of matrices" if isinstance(X, list | tuple) else repr(X)


def check_chunk(chunk: Any, first: bool = False) -> NDArray[Any]:
    """Check a chunk (n, d), in which n may be 0; the `first` must have at least 2 features."""
    return check_array(
        as_matrix(chunk),
        dtype=FLOATS,
        input_name="X",
        ensure_min_samples=0,
        ensure_min_features=2 if first else 1,
    )


def gather(
    X: Any, check: Check = check_chunk, min_samples: int = 2, distinct: bool = False
) -> Moments:
    """Read all chunks once; return their moments. With `distinct`, copies count once."""
    if isinstance(X, Moments):
        moments = Moments.from_arrays(X.to_arrays())
    elif is_dask(X):
        moments = _gather_blocks(X)
    else:
        named = ((f"chunk {number}", chunk) for number, chunk in enumerate(X))
        chunks = RowReader(X).chunks() if is_memmap(X) else named
        moments, repeated, seen, pivot = Moments(), Moments(), set[int](), None
        for rows in _check_all(chunks, check):
            if distinct:
                pivot = rows.mean(axis=0) if pivot is None else pivot
                hashes = copy_hashes(rows, pivot)
                new = np.fromiter((each not in seen for each in hashes.tolist()), bool)
                new &= first_of_equal(hashes)
                seen.update(hashes.tolist())
                repeated.update(rows[~new])
                rows = rows if new.all() else rows[new]
            moments.update(rows)
        if not are_copies(moments.count, moments.count + repeated.count):
            if moments.count < 3 * len(moments):
                warn(
                    f"X has {moments.count:g} different rows for {len(moments)} features: equal "
                    "ones count as draws by chance; if they are copies, leave them out"
                )
            moments.merge(repeated)
    if not moments.count:
        raise ValueError(
            "X gave no rows. An iterator is used up once it has been read: make a fresh one, or "
            "pass a list of chunks"
        )
    if moments.count < min_samples:
        raise ValueError(
            f"X has {moments.count:g} row(s) in all chunks, but at least {min_samples} are required"
        )
    if not bool(torch.isfinite(moments.scatter).all()):
        raise ValueError(
            "X contains NaN, infinity or values whose squares overflow; drop these rows, or "
            "scale X down"
        )
    return moments


class RowReader:
    """Reader of the rows of a matrix, memory map or dask array, all of them or by `index`."""

    def __init__(self, X: Any, index: NDArray[np.int64] | None = None, name: str = "X") -> None:
        if is_dask(X):
            X = _with_unsplit_rows(X)
            if np.isnan(X.shape[0]):
                raise ValueError(f"{name} is {X!r}: call {name}.compute_chunk_sizes() first")
            X = X.rechunk({0: max(X.chunks[0])})
        self.X, self.index = X, index

    def __len__(self) -> int:
        return int(self.X.shape[0]) if self.index is None else len(self.index)

    def take(self, index: NDArray[np.int64]) -> "RowReader":
        """Read the rows with these numbers."""
        if is_dask(self.X):
            return RowReader(self.X[index])
        return RowReader(self.X, index if self.index is None else self.index[index])

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all rows in blocks in float64 or float32, after checking them."""
        size = max(1, _ENTRIES // max(1, self.X.shape[1]))
        for block in _check_all(self.chunks()):
            yield from (block[first : first + size] for first in range(0, len(block), size))

    def chunks(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the rows in chunks with names; a dask array has its own chunks."""
        size = max(1, _ENTRIES // max(1, self.X.shape[1]))
        if is_dask(self.X):
            size = max(1, *self.X.chunks[0])
        elif is_memmap(self.X) and self.index is not None:
            size = min(size, _SCATTERED)
        for start in range(0, len(self), size):
            part: Any = slice(start, min(start + size, len(self)))
            name = f"rows {start} to {part.stop - 1}"
            rows = self.X[part if self.index is None else self.index[part]]
            if is_memmap(self.X):
                rows = np.array(rows)
                unmap_pages(self.X)
            yield name, rows.compute() if is_dask(rows) else rows  # which may be masked


def unmap_pages(X: Any) -> None:
    """Take the pages of a read-only memory map out of the process, as whose memory they count."""
    if X.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        X._mmap.madvise(mmap.MADV_DONTNEED)


def map_blocks(
    X: Any, function: Callable[..., NDArray[Any]], map_: Any, n_features_out: int
) -> Any:
    """Apply `function(block, map_=map_)` lazily to the blocks of rows of a dask array X."""
    dask = import_optional("dask", feature="A dask array", extra="dask")
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    rows = _with_unsplit_rows(X)
    return rows.map_blocks(
        function,
        map_=dask.delayed(map_, traverse=False),  # sent to each worker once
        dtype=dtype,
        chunks=(rows.chunks[0], (n_features_out,)),
        meta=np.empty((0, 0), dtype),
    )


def _check_all(
    chunks: Iterable[tuple[str, Any]], check: Check = check_chunk
) -> Iterator[NDArray[Any]]:
    """Yield chunks of equal width after checking them; errors begin with their names."""
    width = None
    for name, chunk in chunks:
        with prefix_errors(name):
            if isinstance(chunk, list | tuple) and chunk and np.ndim(chunk[0]) == 2:
                raise ValueError(
                    f"a {type(chunk).__name__} of {len(chunk)} arrays is not a matrix; pass an "
                    "iterable of matrices, such as (X for X, y in loader)"
                )
            rows = check(chunk, width is None)
            width = width or rows.shape[1]
            if rows.shape[1] != width:
                raise ValueError(f"it has {rows.shape[1]} features, the rows before have {width}")
        yield rows


@contextmanager
def prefix_errors(part: str) -> Iterator[None]:
    """Put the name of a part in front of the message of a ValueError or TypeError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{part}: {error}") from error


def _with_unsplit_rows(X: Any) -> Any:
    """Rechunk a dask array so that each row lies in one block."""
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: X is {X!r}")
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


def _gather_blocks(X: Any) -> Moments:
    """Moments of a dask array; only moments are sent between workers."""
    dask = import_optional("dask", feature="A dask array", extra="dask")
    measure = dask.delayed(_measure_block)
    merge = dask.delayed(lambda parts: reduce(Moments.merge, parts, Moments()))
    blocks = _with_unsplit_rows(X).to_delayed().ravel()
    parts = [measure(block, number) for number, block in enumerate(blocks)]
    while len(parts) > 1:
        parts = [merge(parts[i : i + _FAN_IN]) for i in range(0, len(parts), _FAN_IN)]
    return parts[0].compute()


def _measure_block(block: Any, number: int) -> Moments:
    with prefix_errors(f"block {number}"):
        return Moments().update(check_chunk(block, first=True))
