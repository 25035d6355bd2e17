"""Embeddings that come in chunks: iterables of matrices, memory maps, dask arrays, moments."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array

from isoadapt._utils.devices import as_array
from isoadapt._utils.optional import import_optional
from isoadapt.geometry import Moments

_CHUNK = 8192
_FAN_IN = 8  # moments that one task merges

Chunked = ArrayLike | Iterable[ArrayLike] | Moments
Check = Callable[[Any, bool], NDArray[Any]]


def is_dask(X: Any) -> bool:
    """Say whether X is a dask array, without importing dask.

    Parameters
    ----------
    X : object
        Anything.

    Returns
    -------
    bool
        False for dask's other collections.
    """
    array = sys.modules.get("dask.array")
    return array is not None and isinstance(X, array.Array)


def is_memmap(X: Any) -> bool:
    """Say whether X is a matrix mapped from a file.

    Parameters
    ----------
    X : object
        Anything.

    Returns
    -------
    bool
        True for what ``numpy.load(path, mmap_mode="r")`` gives.
    """
    return isinstance(X, np.memmap) and X.ndim == 2


def in_chunks(X: Any) -> bool:
    """Say whether X is no matrix, but gives its rows chunk by chunk, or only their moments.

    A list of matrices is a list of chunks; a list of rows is a matrix.

    Parameters
    ----------
    X : object
        Anything.

    Returns
    -------
    bool
        False for whatever may pass as one matrix, memory maps included.
    """
    if isinstance(X, Moments | Iterator) or is_dask(X):
        return True
    if isinstance(X, list | tuple):
        return len(X) > 0 and len(getattr(X[0], "shape", ())) == 2
    sized = isinstance(X, Sequence | Mapping | Set) or hasattr(X, "shape")
    return isinstance(X, Iterable) and not sized and not hasattr(X, "__array__")


def refuse_chunks(X: Any, why: str) -> None:
    """Refuse what comes in chunks where all rows are needed at once.

    Parameters
    ----------
    X : object
        Anything.
    why : str
        What needs them, a sentence.

    Raises
    ------
    TypeError
        If X is no matrix.
    """
    if not in_chunks(X):
        return
    way_out = "np.concatenate(list(chunks))"
    if isinstance(X, Moments):
        way_out = "the embeddings that they are the moments of"
    elif is_dask(X):
        way_out = "X.compute()"
    raise TypeError(f"X is {describe(X)}, but {why}: pass one matrix, such as {way_out}")


def describe(X: Any) -> str:
    """Name the kind of what comes in chunks.

    Parameters
    ----------
    X : object
        For which :func:`in_chunks` holds, or a memory map.

    Returns
    -------
    str
        With its article.
    """
    if is_dask(X):
        return "a dask array"
    return f"a {type(X).__name__} of matrices" if isinstance(X, list | tuple) else repr(X)


def check_chunk(chunk: Any, first: bool = False) -> NDArray[Any]:
    """Check a chunk, which may be empty.

    Parameters
    ----------
    chunk : array-like of shape (n_samples, n_features)
        Rows.
    first : bool, default=False
        Whether it is the first one, which tells the number of features.

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        The same rows, float64 or float32.
    """
    return check_array(
        as_array(chunk),
        dtype=[np.float64, np.float32],
        input_name="X",
        ensure_min_samples=0,
        ensure_min_features=2 if first else 1,
    )


def gather(X: Any, check: Check = check_chunk, min_samples: int = 2) -> Moments:
    """Read all chunks once and keep only their moments.

    Parameters
    ----------
    X : iterable of array-like, memory map, dask array or Moments
        Embeddings. The blocks of a dask array are reduced to moments where they are, and the
        moments are merged there.
    check : callable, default=check_chunk
        Checks a chunk and returns it as an array; takes the chunk and whether it is the first.
        Blocks of dask arrays are always checked by :func:`check_chunk`.
    min_samples : int, default=2
        Rows that are needed.

    Returns
    -------
    Moments
        New ones, on the CPU.

    Raises
    ------
    ValueError
        If a chunk is no matrix, is not finite or has another number of features, which names
        the chunk, or if there are too few rows.
    """
    if isinstance(X, Moments):
        moments = Moments.from_arrays(X.to_arrays())
    elif is_dask(X):
        moments = _gather_blocks(X)
    else:
        moments = Moments()
        for number, (name, chunk) in enumerate(_named_chunks(X)):
            with _naming(name):
                _refuse_several(chunk)
                moments.update(check(chunk, number == 0))
    if not moments.count:
        raise ValueError(
            "X gave no rows: an iterator is used up once it has been read, so make a fresh one, "
            "or pass a list of chunks"
        )
    if moments.count < min_samples:
        raise ValueError(
            f"X has {moments.count:g} row(s) in all its chunks together, while a minimum of "
            f"{min_samples} is required"
        )
    if not bool(torch.isfinite(moments.scatter).all()):
        raise ValueError("X contains NaN, infinity or values whose squares are too large")
    return moments


def map_blocks(
    X: Any, function: Callable[..., NDArray[Any]], map_: Any, n_features_out: int
) -> Any:
    """Map the blocks of a dask array lazily, float32 to float32 and all else to float64.

    Parameters
    ----------
    X : dask.array.Array of shape (n_samples, n_features)
        Rows.
    function : callable
        Of a block and, by the name of ``map_``, the map.
    map_ : object
        Sent to each worker once, not with each block.
    n_features_out : int
        Width of what it gives.

    Returns
    -------
    dask.array.Array of shape (n_samples, n_features_out)
        In the same blocks of rows.
    """
    dask = import_optional("dask", feature="A dask array", extra="dask")
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    rows = _whole_rows(X)
    return rows.map_blocks(
        function,
        map_=dask.delayed(map_, traverse=False),
        dtype=dtype,
        chunks=(rows.chunks[0], (n_features_out,)),
        meta=np.empty((0, 0), dtype),
    )


def _named_chunks(X: Any) -> Iterator[tuple[str, Any]]:
    if is_memmap(X):
        for start in range(0, len(X), _CHUNK):
            chunk = X[start : start + _CHUNK]
            yield f"rows {start} to {start + len(chunk) - 1}", chunk
    else:
        for number, chunk in enumerate(X):
            yield f"chunk {number}", chunk


def _refuse_several(chunk: Any) -> None:
    """Refuse what loaders of rows with labels give."""
    if isinstance(chunk, list | tuple) and chunk and len(getattr(chunk[0], "shape", ())) == 2:
        raise ValueError(
            f"a {type(chunk).__name__} of {len(chunk)} arrays is no matrix; give matrices only, "
            "such as (X for X, y in loader)"
        )


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Put the name of a part before what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error


def _whole_rows(X: Any) -> Any:
    """Bring each row of a dask array into one block."""
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: X is {X!r}")
    if np.isnan(X.shape[1]):
        raise ValueError(
            f"X is {X!r}, whose number of features is unknown: call X.compute_chunk_sizes() first"
        )
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


def _gather_blocks(X: Any) -> Moments:
    """Moments of a dask array; only they travel."""
    dask = import_optional("dask", feature="A dask array", extra="dask")
    measure, merge = dask.delayed(_block_moments), dask.delayed(_merged)
    blocks = _whole_rows(X).to_delayed().ravel()
    parts = [measure(block, number) for number, block in enumerate(blocks)]
    while len(parts) > 1:
        parts = [merge(parts[i : i + _FAN_IN]) for i in range(0, len(parts), _FAN_IN)]
    return parts[0].compute() if parts else Moments()


def _block_moments(block: Any, number: int) -> Moments:
    with _naming(f"block {number}"):
        return Moments().update(check_chunk(block, first=True))


def _merged(parts: list[Moments]) -> Moments:
    whole = Moments()
    for part in parts:
        whole.merge(part)
    return whole
