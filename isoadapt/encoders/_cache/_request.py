"""Requests for vectors: stored vectors are read, and the others are encoded once."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from isoadapt.encoders._cache._environment import Unusable
from isoadapt.encoders._cache._keys import Identity, row_keys
from isoadapt.encoders._cache._store import Store
from isoadapt.encoders._texts import Texts

_CHARACTERS = 50_000  # in the first batch; later batches grow or shrink towards
_SECONDS = 2.0  # of encoding each, which is the work that a killed process loses
_POLL_SECONDS = 0.05


class Changed(Exception):
    """The model changed while its vectors were computed."""


class Request:
    """Vectors of distinct texts, each encoded once although several processes and threads need it.

    A worker claims the rows of texts before it encodes them. Other workers wait for these rows, and
    encode them if the claiming worker has died.
    """

    def __init__(
        self,
        store: Store,
        max_size: int,
        texts: Texts,
        identify: Callable[[], Identity],
        encode: Callable[[Texts], NDArray[np.float32]],
        progress: Callable[[int], Any],
    ) -> None:
        self._store, self._max_size = store, max_size
        self._texts, self._identify, self._encode = texts, identify, encode
        self._progress = progress
        self._identity = identify()
        self._keys = row_keys(self._identity, texts)
        self._known = np.zeros(len(texts), dtype=bool)
        self._lengths = texts.lengths()
        self._longest_first = np.argsort(-self._lengths, kind="stable")
        self._vectors = np.empty((len(texts), 0), dtype=np.float32)

    def vectors(self) -> NDArray[np.float32]:
        """Read or encode the vectors (n, d).

        If the model changes meanwhile, all texts are encoded again and nothing is stored.
        """
        self._read()
        if self._known.all():
            return self._vectors
        try:
            with _worker(self._store) as name:
                self._work(name)
        except Unusable as error:
            warnings.warn(f"encoding continues without the cache: {error}", stacklevel=2)
        except Changed:
            return self._encode(self._texts)
        missing = self._missing()
        if len(missing):
            self._fill(missing, self._encode(self._texts.take(missing)))
        return self._vectors

    def _work(self, name: bytes) -> None:
        """Encode unclaimed texts, in batches of about two seconds, until nothing is missing."""
        characters = _CHARACTERS
        queue = self._missing()
        while len(queue):
            limit = np.searchsorted(self._lengths[queue].cumsum(), characters, side="right")
            keys = [self._keys[i] for i in queue]
            claimed, seen = self._store.claim(keys, name, max(1, int(limit)))
            if claimed:
                seconds = self._encode_and_store(queue[claimed])
                characters = int(characters * np.clip(_SECONDS / seconds, 0.5, 2.0))
            else:
                _release_dead_claims(self._store)
                time.sleep(_POLL_SECONDS)
            queue = queue[seen:]
            if not len(queue):
                self._read()
                queue = self._missing()

    def _encode_and_store(self, rows: NDArray[np.int64]) -> float:
        """Encode and store some rows; return the seconds that encoding took."""
        started = time.perf_counter()
        vectors = self._encode(self._texts.take(rows))
        seconds = time.perf_counter() - started
        if self._identify() != self._identity:
            raise Changed
        self._fill(rows, vectors)
        self._store.put([self._keys[i] for i in rows], vectors, self._max_size)
        return seconds

    def _read(self) -> None:
        """Read the missing rows that are stored."""
        missing = self._missing()
        vectors, found = self._store.read([self._keys[i] for i in missing])
        if vectors is not None:
            self._fill(missing[found], vectors[found])
            self._store.touch([self._keys[i] for i in missing[found]])
            self._progress(int(found.sum()))

    def _fill(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Set the vectors of some rows."""
        if not self._known.any():
            self._vectors = np.empty((len(self._known), vectors.shape[1]), dtype=np.float32)
        self._vectors[rows] = vectors
        self._known[rows] = True

    def _missing(self) -> NDArray[np.int64]:
        """Return the missing rows, long texts first, so that batches need little padding."""
        return self._longest_first[~self._known[self._longest_first]]


@contextmanager
def _worker(store: Store) -> Iterator[bytes]:
    """Yield a name that no other live worker has, and release its claims afterwards."""
    for number in count():
        name = number.to_bytes(4, "big")
        lock = _lock(store, name)
        with suppress(Timeout):
            lock.acquire(blocking=False)
            break
    try:
        _release_claims(store, name)  # those of a killed worker that had the same name
        yield name
        _release_claims(store, name)
    finally:
        lock.release()


def _release_dead_claims(store: Store) -> None:
    """Release the claims of workers that have died, whose locks are therefore free."""
    for name in store.owners():
        with suppress(Timeout), _lock(store, name).acquire(blocking=False):
            store.unclaim(name)


def _release_claims(store: Store, name: bytes) -> None:
    """Release the claims of a worker, if it has any."""
    if name in store.owners():
        store.unclaim(name)


def _lock(store: Store, name: bytes) -> FileLock:
    """Return the lock that a worker holds as long as it lives."""
    return FileLock(store.folder / "locks" / f"worker-{int.from_bytes(name, 'big')}.lock")
