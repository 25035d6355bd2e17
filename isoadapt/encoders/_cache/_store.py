"""The content of a cache: vectors by key, their last use, claims of workers, and counts."""

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt.encoders._cache._environment import Damaged, environment_in, problems

_TABLES = ("rows", "used", "claims", "counts")
_COUNTS = struct.Struct("<4Q")
_USE = np.dtype([("key", "V20"), ("tick", ">u8")])
_EVICTED_AT_ONCE = 1000
_KEPT = 0.9  # fraction of the maximum size that remains after an eviction
_OVER = 0.05  # fraction of the maximum size that may be written before the next eviction


class Store:
    """Vectors in a folder, shared by threads and processes.

    Only `rows.lmdb`, `rows.damaged` and `locks` in the folder are used.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._environment = environment_in(folder, _TABLES)
        self.folder = self._environment.folder

    def read(self, keys: Sequence[bytes]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Look rows up; return vectors (len(keys), d) and which rows were found (len(keys),).

        The vectors are None if no row was found. Rows that were not found have arbitrary values.
        """

        def look_up(transaction: Any, tables: Mapping[str, Any]) -> Any:
            vectors, found = None, np.zeros(len(keys), dtype=bool)
            for i in _order_by_key(keys):
                value = transaction.get(keys[i], db=tables["rows"])
                if value is not None:
                    vector = np.frombuffer(_content(keys[i], value), dtype="<f4")
                    if vectors is None:
                        vectors = np.empty((len(keys), len(vector)), dtype=np.float32)
                    vectors[i], found[i] = vector, True
            return vectors, found

        return self._environment.run(look_up)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count rows as hits, and mark them as used now."""

        def mark(transaction: Any, tables: Mapping[str, Any]) -> None:
            now = _tick_bytes(_count(transaction, tables, hits=len(keys), ticks=1).ticks)
            for i in _order_by_key(keys):
                if transaction.get(keys[i], db=tables["used"]) is not None:  # not deleted since
                    transaction.put(keys[i], now, db=tables["used"])

        self._environment.run(mark, write=True)

    def put(self, keys: Sequence[bytes], vectors: NDArray[np.float32], max_size: int) -> None:
        """Store rows, count them as misses and release the claims on them.

        If keys and rows exceed `max_size` bytes, the least recently used rows are deleted.
        """

        order = _order_by_key(keys)
        step = max(1, int(_OVER * max_size) // max(1, vectors[:1].nbytes))

        def write(transaction: Any, tables: Mapping[str, Any]) -> int:
            now = _tick_bytes(_counts(transaction, tables).ticks + 1)
            size = 0
            for i in part:
                row = _with_checksum(keys[i], vectors[i].astype("<f4").tobytes())
                if transaction.put(keys[i], row, overwrite=False, db=tables["rows"]):
                    size += len(keys[i]) + len(row)
                transaction.put(keys[i], now, db=tables["used"])
                transaction.delete(keys[i], db=tables["claims"])
            return _count(transaction, tables, misses=len(part), ticks=1, size=size).size

        for start in range(0, len(order), step):
            part = order[start : start + step]
            if self._environment.run(write, write=True) > max_size:
                self._evict(int(_KEPT * max_size))

    def claim(self, keys: Sequence[bytes], owner: bytes, limit: int) -> tuple[list[int], int]:
        """Claim up to `limit` rows that are neither stored nor claimed already.

        The result is the positions of the claimed keys, and the number of keys that were examined
        until the limit was reached.
        """

        def take(transaction: Any, tables: Mapping[str, Any]) -> tuple[list[int], int]:
            claimed: list[int] = []
            for i, key in enumerate(keys):
                if len(claimed) == limit:
                    return claimed, i
                taken = (transaction.get(key, db=tables[name]) for name in ("rows", "claims"))
                if all(value is None for value in taken):
                    transaction.put(key, owner, db=tables["claims"])
                    claimed.append(i)
            return claimed, len(keys)

        return self._environment.run(take, write=True)

    def owners(self) -> set[bytes]:
        """Return the owners of all claims."""
        return self._environment.run(
            lambda transaction, tables: {
                bytes(owner) for _, owner in transaction.cursor(tables["claims"])
            }
        )

    def unclaim(self, owner: bytes) -> None:
        """Release all claims of an owner."""

        def delete(transaction: Any, tables: Mapping[str, Any]) -> None:
            cursor = transaction.cursor(tables["claims"])
            for key in [key for key, by in cursor if by == owner]:
                transaction.delete(key, db=tables["claims"])

        self._environment.run(delete, write=True)

    def counts(self) -> tuple[int, int, int, int]:
        """Return hits, misses, rows, and the size of keys and rows in bytes."""

        def look_up(transaction: Any, tables: Mapping[str, Any]) -> tuple[int, int, int, int]:
            counts = _counts(transaction, tables)
            rows = transaction.stat(tables["rows"])["entries"]
            return counts.hits, counts.misses, rows, counts.size

        return self._environment.run(look_up)

    def check(self) -> tuple[int, list[str]]:
        """Check the whole file, and set it aside if it is damaged; return rows and problems."""

        def walk(transaction: Any, tables: Mapping[str, Any]) -> tuple[int, list[str]]:
            rows = transaction.stat(tables["rows"])["entries"]
            found = problems(self._environment.path)
            if not found:  # in a damaged file, a cursor might loop forever
                for key, value in transaction.cursor(tables["rows"]):
                    try:
                        _content(key, value)
                    except Damaged as error:
                        found.append(str(error))
            return rows, found

        with self._environment.lock:
            rows, found = self._environment.run(walk, write=True)  # a writer excludes others
            if found:
                self._environment.recover(Damaged(found[0]))
        return rows, found

    def clear(self) -> None:
        """Delete everything."""
        self._environment.remove()

    def _evict(self, size: int) -> None:
        """Delete the least recently used rows until the rest fits into `size` bytes."""

        def list_uses(transaction: Any, tables: Mapping[str, Any]) -> NDArray[np.void]:
            found = bytearray()
            for key, tick in transaction.cursor(tables["used"]):
                found += key
                found += tick
            return np.frombuffer(found, dtype=_USE)

        def delete(transaction: Any, tables: Mapping[str, Any]) -> bool:
            gone, surplus = 0, _counts(transaction, tables).size - size
            for key, ticks in oldest.tolist():
                if gone >= surplus:
                    break
                if transaction.get(key, db=tables["used"]) == _tick_bytes(ticks):  # not used since
                    transaction.delete(key, db=tables["used"])
                    row = transaction.pop(key, db=tables["rows"])
                    gone += len(key) + len(row or b"")
            _count(transaction, tables, size=-gone)
            return gone < surplus

        uses = self._environment.run(list_uses)
        uses = uses[np.argsort(uses["tick"], kind="stable")]
        for start in range(0, len(uses), _EVICTED_AT_ONCE):
            oldest = uses[start : start + _EVICTED_AT_ONCE]
            if not self._environment.run(delete, write=True):
                return


class _Counts(NamedTuple):
    """Counts over all processes."""

    hits: int = 0
    misses: int = 0
    ticks: int = 0  # operations, the clock that measures last use
    size: int = 0  # bytes of keys and rows


def _counts(transaction: Any, tables: Mapping[str, Any]) -> _Counts:
    """Read the counts."""
    stored = transaction.get(b"counts", db=tables["counts"])
    if stored is None:
        return _Counts()
    return _Counts(*_COUNTS.unpack(_content(b"counts", stored)))


def _count(transaction: Any, tables: Mapping[str, Any], **more: int) -> _Counts:
    """Add to the counts, and return the new ones."""
    old = _counts(transaction, tables)
    new = old._replace(**{name: getattr(old, name) + value for name, value in more.items()})
    transaction.put(b"counts", _with_checksum(b"counts", _COUNTS.pack(*new)), db=tables["counts"])
    return new


def _tick_bytes(ticks: int) -> bytes:
    """Encode a time stamp as bytes that have the same order."""
    return ticks.to_bytes(8, "big")


def _order_by_key(keys: Sequence[bytes]) -> list[int]:
    """Return the positions sorted by key, so that neighbours on disk are accessed in sequence."""
    return sorted(range(len(keys)), key=keys.__getitem__)


def _with_checksum(key: bytes, content: bytes) -> bytes:
    """Put a checksum in front of the content of an entry."""
    return _checksum(key, content) + content


def _content(key: bytes, value: Any) -> Any:
    """Return the content of an entry; raise :class:`Damaged` if its checksum is wrong."""
    if value[:4] != _checksum(key, value[4:]):
        raise Damaged(f"the checksum of entry {key.hex()} is wrong")
    return value[4:]


def _checksum(key: bytes, content: Any) -> bytes:
    """Compute the CRC-32 of key and content."""
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(4, "little")
