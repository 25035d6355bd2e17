"""EmbeddingCache: vectors on disk, so that no text is encoded twice."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from isoadapt.encoders._cache._keys import Identity
from isoadapt.encoders._texts import Texts

if TYPE_CHECKING:
    from isoadapt.encoders._cache._store import Store

_CONSTRAINTS: dict[str, Any] = {
    "folder": [str, os.PathLike],
    "max_size": [Interval(Integral, 2**20, None, closed="left")],
}


class CacheStats(NamedTuple):
    """What a cache holds, and what all processes together got from it since it was begun.

    Attributes
    ----------
    hits : int
        Vectors read.
    misses : int
        Texts encoded. A text that occurs more than once in a call counts once.
    rows : int
        Vectors stored.
    size : int
        Bytes of vectors and keys.
    """

    hits: int
    misses: int
    rows: int
    size: int


class CacheCheck(NamedTuple):
    """What a check found.

    Attributes
    ----------
    rows : int
        Vectors checked.
    problems : tuple of str
        What is wrong; empty if the cache is sound.
    """

    rows: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class EmbeddingCache:
    """Vectors on disk, shared by encoders, threads and processes.

    A vector is found again by the content of the checkpoint (weights, tokenizer, configuration,
    pooling, code), the parameters of the encoder that matter, the text or pair, and a version of
    the way in which this package makes vectors. A release that changes the vectors raises the
    version, and encodes texts again under new keys; the old vectors are evicted in time. So a
    changed checkpoint is never answered from old vectors, and a copy of it in another folder is
    answered from the same ones. Nothing is opened before the first use.

    Parameters
    ----------
    folder : str or path-like
        Where to keep it; made if need be. It must be on a disk of this machine, for it is mapped
        into memory. Other files in the folder are left alone.
    max_size : int, default=10 * 2**30
        Bytes that vectors and their keys may take, 2**20 or more. When there are more, those
        unused for longest go, down to nine tenths. The file takes up to about twice as much; it
        does not shrink, but space in it is used again.

    Raises
    ------
    OSError
        On first use, if the folder cannot be written to.
    ValueError
        On first use, if a parameter is out of range.

    Warns
    -----
    UserWarning
        If the store was damaged. It is renamed to ``rows.damaged`` in the folder, in place of what
        was set aside before, and begun anew.

    See Also
    --------
    TransformerEncoder : Takes a cache, or its folder, as `cache`.

    Notes
    -----
    The store is LMDB's. Every vector has a checksum. A process that is killed loses what it was
    encoding, some two seconds' work, and no more; after a crash of the machine the last few
    batches may be missing. If it was killed while it wrote, or another program touched the file,
    the next process checks the file's structure first, at some 2 s a GB. While one process encodes
    a text, others that want it wait for it.

    Vectors from a GPU and a CPU, or of batches put together differently, differ in the last bits,
    in ``dtype="int8"`` by more; they count as the same, as do those of other versions of torch and
    transformers. A live model is identified by its
    weights, its configuration, the tokenizer with all its attributes, and the names of its classes,
    not by changes to their code.

    A file that another program truncates while it is in use ends the process.

    Examples
    --------
    >>> from isoadapt import EmbeddingCache, TransformerEncoder
    >>> cache = EmbeddingCache("path/to/cache", max_size=2 * 2**30)
    >>> encoder = TransformerEncoder("path/to/model", cache=cache)
    >>> encoder.transform(["One text.", "Another.", "One text."])  # doctest: +SKIP
    array([[ 0.02, ...]], dtype=float32)
    >>> cache.stats()  # doctest: +SKIP
    CacheStats(hits=0, misses=2, rows=2, size=3120)
    """

    folder: str | os.PathLike[str]
    max_size: int = 10 * 2**30

    def stats(self) -> CacheStats:
        """Count hits, misses and rows, as stored, over all processes.

        Returns
        -------
        CacheStats
            Named tuple (hits, misses, rows, size).
        """
        return CacheStats(*self._store().counts())

    def clear(self) -> None:
        """Delete all vectors and counts, and what was set aside as damaged.

        Graphs that ``backend="onnx"`` has exported, in the folder ``onnx``, stay. Processes that
        use the cache go on with an empty one.
        """
        self._store().clear()

    def verify(self) -> CacheCheck:
        """Check the structure of the store and the checksum of every vector.

        Nothing is written meanwhile; 100,000 vectors of 384 numbers take about a second. A damaged
        store is set aside with a warning and begun anew.

        Returns
        -------
        CacheCheck
            Named tuple (rows, problems).
        """
        rows, problems = self._store().check()
        return CacheCheck(rows, tuple(problems))

    def _embed(
        self,
        texts: Texts,
        identify: Callable[[], Identity],
        encode: Callable[[Texts], NDArray[np.float32]],
        progress: Callable[[int], Any],
    ) -> NDArray[np.float32]:
        """Give the vectors of distinct texts, encoding those that are not stored."""
        from isoadapt.encoders._cache._request import Request

        return Request(self._store(), self.max_size, texts, identify, encode, progress).vectors()

    def _store(self) -> "Store":
        from isoadapt.encoders._cache._store import Store

        validate_parameter_constraints(_CONSTRAINTS, vars(self), caller_name="EmbeddingCache")
        return Store(self.folder)


def as_cache(cache: str | os.PathLike[str] | EmbeddingCache) -> EmbeddingCache:
    """Take a cache as it is, or the one in a folder.

    Parameters
    ----------
    cache : str, path-like or EmbeddingCache
        The cache or its folder.

    Returns
    -------
    EmbeddingCache
        The cache.

    Raises
    ------
    ValueError
        If the folder's name is empty.
    """
    if isinstance(cache, EmbeddingCache):
        return cache
    if not os.fspath(cache):
        raise ValueError("cache='' names no folder: pass one, or cache=None")
    return EmbeddingCache(cache)
