"""EmbeddingCache: embeddings on disk, so that no text is encoded twice."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from isoadapt._utils.messages import warn
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts

if TYPE_CHECKING:
    from isoadapt.encoders._cache._store import Store

_CHARACTERS = 50_000  # in the first batch; later batches grow or shrink towards
_SECONDS = 2.0  # of encoding each, which is the work that a killed process loses
_SHARE = 0.25  # of the missing texts, at most, in a batch: others may be encoding them too
_FEWEST = 5_000  # characters to which this share does not apply
_POLL_SECONDS = 0.01

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
        recently used vectors are deleted until nine tenths of this size are left. The file takes up
        to about two and a half times as much, because its pages are not completely filled. It does
        not shrink, but its free space is reused.

    Raises
    ------
    OSError
        If the folder cannot be written to, or the disk is full on first use.
    ValueError
        On first use, if a parameter is out of range, or if the encoder's model is a live one.

    Warns
    -----
    UserWarning
        If the store was damaged, and was therefore deleted and replaced by an empty one. A warning
        is also given if the disk fills up, and encoding continues without the cache.

    See Also
    --------
    TransformerEncoder : Takes a cache, or its folder, as `cache`.

    Notes
    -----
    The store is an LMDB file with a checksum for every vector. A process that is killed loses only
    the texts that it was encoding, about two seconds of work. After a crash of the machine, the
    last few batches may be missing. If a process was killed while it wrote, or if another program
    changed the file, the next process first checks the structure of the file, which takes some
    seconds per GB.

    Keys are divided into sixteen ranges. A process or thread holds the locks of those ranges in
    which it is encoding a batch, so no text is encoded twice. Others go on with other ranges, and
    wait only if all texts that they lack are in ranges that are being encoded.

    A process that is forked while no thread encodes can use the cache too.

    Vectors computed on a GPU and on a CPU, or in batches of other composition, differ in the last
    bits, and by more with ``dtype="int8"``. The cache treats them as equal. It also treats vectors
    of different versions of torch and transformers as equal.

    Everyone who can write to the folder can change vectors: the checksums detect accidental damage
    only. If another program truncates the file while it is in use, the process is terminated.

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
        """Delete all vectors and counts.

        Graphs that ``backend="onnx"`` has exported to the folder ``onnx`` are kept. Processes that
        use the cache continue with an empty one.
        """
        self._store().clear()

    def verify(self) -> CacheCheck:
        """Check the structure of the store and the checksum of every vector.

        No process can write during the check, which takes about a second for 100,000 vectors of 384
        numbers. A damaged store is replaced by an empty one, with a warning.

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
        return _Request(self, texts, identify, encode, progress).vectors()

    def _store(self) -> "Store":
        """Validate the parameters and return the store of the folder."""
        from isoadapt.encoders._cache._store import store_in

        validate_parameter_constraints(_CONSTRAINTS, vars(self), caller_name="EmbeddingCache")
        return store_in(self.folder)


def as_cache(cache: str | os.PathLike[str] | EmbeddingCache) -> EmbeddingCache:
    """Return a cache unchanged, or the cache in a folder."""
    if isinstance(cache, EmbeddingCache):
        return cache
    if not os.fspath(cache):
        raise ValueError("cache='' is not a folder; pass the path of a folder, or cache=None")
    return EmbeddingCache(cache)


class _Changed(Exception):
    """The model changed while its vectors were computed."""


class _Request:
    """The vectors (n, d) of distinct texts, read or encoded."""

    def __init__(
        self,
        cache: EmbeddingCache,
        texts: Texts,
        identify: Callable[[], Identity],
        encode: Callable[[Texts], NDArray[np.float32]],
        progress: Callable[[int], Any],
    ) -> None:
        self._store, self._max_size, self._texts = cache._store(), cache.max_size, texts
        self._identify, self._encode, self._progress = identify, encode, progress
        self._identity = identify()
        self._keys = row_keys(self._identity, texts)
        self._ranges = np.array([key[0] % 16 for key in self._keys])
        prefix = self._identity.digest[:8].hex()
        self._locks = [self._store.lock(f"{prefix}-{part:x}") for part in range(16)]
        self._lengths = texts.lengths()
        self._longest_first = np.argsort(-self._lengths, kind="stable")
        self._characters = float(_CHARACTERS)  # in the next batch

    def vectors(self) -> NDArray[np.float32]:
        """Read the vectors that are stored, and encode the others.

        If the disk fails, encoding continues without the cache. If the model changes meanwhile, all
        texts are encoded again and nothing more is stored.
        """
        from isoadapt.encoders._cache._store import Unusable

        self._vectors, found = self._store.read(self._keys)  # OSError if the folder cannot be used
        self._missing = ~found
        try:
            self._count_hits(np.flatnonzero(found))
            while self._missing.any():
                self._encode_batch()
        except Unusable as error:
            warn(f"encoding continues without the cache: {error}")
        except _Changed:
            return self._encode(self._texts)
        if self._missing.any():
            rows = np.flatnonzero(self._missing)
            self._fill(rows, self._encode(self._texts.take(rows)))
        return self._vectors

    def _encode_batch(self) -> None:
        """Encode texts of ranges that are free; others may be encoding the rest."""
        missing = self._longest_first[self._missing[self._longest_first]]
        most = min(self._characters, max(_FEWEST, _SHARE * self._lengths[missing].sum()))
        with ExitStack() as held:
            for lock in 2 * self._locks:  # twice, as the first release may be interrupted
                held.callback(lock.release, force=True)  # no effect on a lock that is not held
            rows = self._lock_ranges(missing, most)
            vectors, found = self._store.read([self._keys[i] for i in rows])  # stored by others
            self._fill(rows[found], vectors[found])
            self._count_hits(rows[found])
            rows = rows[~found]
            within = int(np.searchsorted(self._lengths[rows].cumsum(), most, side="right"))
            rows = rows[: max(1, within)]
            if not len(rows):
                time.sleep(_POLL_SECONDS)
                return
            started = time.perf_counter()
            vectors = self._encode(self._texts.take(rows))
            rate = self._lengths[rows].sum() / (time.perf_counter() - started)
            if self._identify() != self._identity:
                raise _Changed
            self._fill(rows, vectors)
            self._store.put([self._keys[i] for i in rows], vectors, self._max_size)
            aim, now = _SECONDS * rate, self._characters
            self._characters = float(np.clip(aim, now / 2, now * 2))

    def _lock_ranges(self, missing: NDArray[np.int64], most: float) -> NDArray[np.int64]:
        """Lock free ranges at random until they have `most` characters; return their rows."""
        ranges, held = self._ranges[missing], np.zeros(len(missing), dtype=bool)
        for part in np.random.default_rng().permutation(np.unique(ranges)):
            if self._store.try_lock(self._locks[part]):
                held |= ranges == part
            if self._lengths[missing[held]].sum() >= most:
                break
        return missing[held]

    def _count_hits(self, rows: NDArray[np.int64]) -> None:
        """Report rows that were read."""
        if len(rows):
            self._store.touch([self._keys[i] for i in rows])
            self._progress(len(rows))

    def _fill(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Set the vectors of some rows."""
        if not len(rows):
            return
        if not self._vectors.size:
            self._vectors = np.empty((len(self._texts), vectors.shape[1]), dtype=np.float32)
        self._vectors[rows] = vectors
        self._missing[rows] = False
