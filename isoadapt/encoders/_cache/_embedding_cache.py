"""EmbeddingCache: embeddings on disk, so that no text is encoded twice."""

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
    """Contents of a cache, and its use by all processes since it was created."""

    hits: int  # vectors read
    misses: int  # texts encoded; a text that occurs more than once in a call counts once
    rows: int  # vectors stored
    size: int  # bytes of vectors and keys


class CacheCheck(NamedTuple):
    """Result of checking a cache."""

    rows: int  # vectors checked
    problems: tuple[str, ...]  # descriptions; empty if there are none


@dataclass(frozen=True)
class EmbeddingCache:
    """Store embeddings on disk, shared by encoders, threads and processes.

    The key of a vector is a digest of the content of the checkpoint (weights, tokenizer,
    configuration, pooling, code), the parameters of the encoder that affect vectors, the text or
    pair, and a version number of the encoding procedure. A changed checkpoint therefore never
    receives the vectors of the old one, and a copy of a checkpoint in another folder receives the
    same vectors. A release of this package that changes vectors raises the version number. Texts
    are then encoded again under new keys, and the old vectors are evicted over time. Nothing is
    opened before the first use.

    Parameters
    ----------
    folder : str or path-like
        Folder of the cache, created if it does not exist. It must be on a local disk, because the
        store is mapped into memory. Other files in the folder are not touched.
    max_size : int, default=10 * 2**30
        Bytes that vectors and their keys may take, at least 2**20. If they take more, the least
        recently used vectors are deleted until nine tenths of this size are left. The file takes at
        most about twice as much. Vectors are also deleted to keep this limit, because the pages of
        the file are not completely filled. The file does not shrink, but its free space is reused.

    Raises
    ------
    OSError
        If the folder cannot be written to, or the disk is full.
    ValueError
        On first use, if a parameter is out of range.

    Warns
    -----
    UserWarning
        If the store was damaged. It is renamed to ``rows.damaged`` in the same folder, where it
        replaces an earlier damaged store, and an empty store is created. A warning is also given if
        vectors of a wrong width were deleted, if the disk fills up while texts are encoded, and if
        this process has waited for another one for five seconds.

    See Also
    --------
    TransformerEncoder : Takes a cache, or its folder, as `cache`.

    Notes
    -----
    The store is an LMDB file with a checksum for every vector. A process that is killed loses only
    the texts that it was encoding, about two seconds of work. After a crash of the machine, the
    last few batches may be missing. If a process was killed while it wrote, or if another program
    changed the file, the next process first checks the structure of the file, which takes about 2 s
    per GB. While one process encodes a text, other processes that need the same text wait for it.

    Vectors computed on a GPU and on a CPU, or in batches of other composition, differ in the last
    bits, and by more with ``dtype="int8"``. The cache treats them as equal. It also treats vectors
    of different versions of torch and transformers as equal. A live model is identified by its
    weights, its configuration, the tokenizer with all its attributes, and the names of its classes.
    Changes to the code of these classes are not detected.

    Everyone who can write to the folder can change vectors: the checksums detect accidental damage
    only. If the folder permits its group to write, all files in it do, so that the members of the
    group can share the cache.

    If another program truncates the file while it is in use, the process is terminated.

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
        """Return the number of hits, misses and rows, over all processes.

        Returns
        -------
        CacheStats
            Named tuple (hits, misses, rows, size): vectors read from the cache, texts encoded,
            vectors stored, and bytes of vectors and keys. A text that occurs more than once in a
            call counts once.
        """
        return CacheStats(*self._store().counts())

    def clear(self) -> None:
        """Delete all vectors and counts, and stores that were set aside as damaged.

        Graphs that ``backend="onnx"`` has exported to the folder ``onnx`` are kept. Processes that
        use the cache continue with an empty one.
        """
        self._store().clear()

    def verify(self) -> CacheCheck:
        """Check the structure of the store and the checksum of every vector.

        No process can write during the check, which takes about a second for 100,000 vectors of 384
        numbers. A damaged store is set aside with a warning, and an empty store is created.

        Returns
        -------
        CacheCheck
            Named tuple (rows, problems): the number of vectors checked, and a tuple of strings that
            describe problems, empty if there are none.
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
        """Return the vectors (n, d) of distinct texts, encoding those that are not stored."""
        from isoadapt.encoders._cache._request import Request

        return Request(self._store(), self.max_size, texts, identify, encode, progress).vectors()

    def _store(self) -> "Store":
        """Validate the parameters and return the store of the folder."""
        from isoadapt.encoders._cache._store import Store

        validate_parameter_constraints(_CONSTRAINTS, vars(self), caller_name="EmbeddingCache")
        return Store(self.folder)


def as_cache(cache: str | os.PathLike[str] | EmbeddingCache) -> EmbeddingCache:
    """Return a cache unchanged, or the cache in a folder."""
    if isinstance(cache, EmbeddingCache):
        return cache
    if not os.fspath(cache):
        raise ValueError("cache='' is not a folder; pass the path of a folder, or cache=None")
    return EmbeddingCache(cache)
