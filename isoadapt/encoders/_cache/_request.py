"""Requests for vectors: stored vectors are read, and the others are encoded once."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from isoadapt._utils.warn import warn
from isoadapt.encoders._cache import _files
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
        self._keys, self._group = row_keys(self._identity, texts), self._identity.digest
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
            self._work_under_a_name()
        except Unusable as error:
            warn(f"encoding continues without the cache: {error}")
        except Changed:
            return self._encode(self._texts)
        while len(missing := self._missing()):
            self._fill(missing, self._encode(self._texts.take(missing)))
        return self._vectors

    def _work_under_a_name(self) -> None:
        """Encode texts under a name that no other live worker has, and release its claims."""
        locks: list[FileLock] = []
        try:
            name = _free_name(self._store, locks)
            _release_claims(self._store, name)  # those of a killed worker that had the same name
            self._work(name)
            _release_claims(self._store, name)
            _release_all(locks)
        except BaseException:  # "finally" could be skipped if Ctrl-C comes just before it
            _release_all(locks)
            raise

    def _work(self, name: bytes) -> None:
        """Encode unclaimed texts, in batches of about two seconds, until nothing is missing."""
        characters, progress = _CHARACTERS, time.monotonic()
        queue = self._missing()
        while len(queue):
            limit = np.searchsorted(self._lengths[queue].cumsum(), characters, side="right")
            keys = [self._keys[i] for i in queue]
            claimed, seen = self._store.claim(keys, name, max(1, int(limit)))
            if claimed:
                seconds = self._encode_and_store(queue[claimed])
                characters = int(characters * np.clip(_SECONDS / seconds, 0.5, 2.0))
                progress = time.monotonic()
            else:
                _release_dead_claims(self._store)
                if time.monotonic() - progress > _files.PATIENCE:
                    locks = map(_lock_name, self._store.owners() - {name})
                    _files.warn_of_wait(
                        self._store.folder, "for texts that are being encoded", *locks
                    )
                    progress = np.inf  # one warning until the next progress
                time.sleep(_POLL_SECONDS)
            queue = queue[seen:]
            if not len(queue):
                before = self._known.sum()
                self._read()
                if self._known.sum() > before:
                    progress = time.monotonic()
                queue = self._missing()

    def _encode_and_store(self, rows: NDArray[np.int64]) -> float:
        """Encode and store some rows; return the seconds that encoding took."""
        started = time.perf_counter()
        vectors = self._encode(self._texts.take(rows))
        seconds = time.perf_counter() - started
        if self._identify() != self._identity:
            raise Changed
        self._fill(rows, vectors)
        self._store.put([self._keys[i] for i in rows], vectors, self._max_size, self._group)
        return seconds

    def _read(self) -> None:
        """Read the missing rows that are stored."""
        missing = self._missing()
        vectors, found = self._store.read([self._keys[i] for i in missing], self._group)
        if vectors is not None:
            self._fill(missing[found], vectors[found])
            self._store.touch([self._keys[i] for i in missing[found]])
            self._progress(int(found.sum()))

    def _fill(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Set the vectors of some rows; rows of another width, which are wrong, become missing."""
        if vectors.shape[1] != self._vectors.shape[1]:
            self._vectors = np.empty((len(self._known), vectors.shape[1]), dtype=np.float32)
            self._known[:] = False
        self._vectors[rows] = vectors
        self._known[rows] = True

    def _missing(self) -> NDArray[np.int64]:
        """Return the missing rows, long texts first, so that batches need little padding."""
        return self._longest_first[~self._known[self._longest_first]]


def _free_name(store: Store, locks: list[FileLock]) -> bytes:
    """Return the first name that no live worker has, whose lock is then held and in `locks`."""
    number = 0
    while not store.try_lock(_lock_name(number.to_bytes(4, "big")), locks):
        number += 1
    return number.to_bytes(4, "big")


def _release_dead_claims(store: Store) -> None:
    """Release the claims of workers that have died, whose locks are therefore free."""
    for name in store.owners():
        locks: list[FileLock] = []
        try:
            if store.try_lock(_lock_name(name), locks):
                store.unclaim(name)
            _release_all(locks)
        except BaseException:
            _release_all(locks)
            raise


def _release_all(locks: list[FileLock]) -> None:
    for lock in locks:
        lock.release(force=True)  # has no effect on a lock that is not held


def _release_claims(store: Store, name: bytes) -> None:
    """Release the claims of a worker, if it has any."""
    if name in store.owners():
        store.unclaim(name)


def _lock_name(name: bytes) -> str:
    """Return the name of the lock that a worker holds as long as it lives."""
    return f"worker-{int.from_bytes(name, 'big')}"
