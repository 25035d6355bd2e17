"""The content of a cache: vectors by key, their last use, claims of workers, and counts."""

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from isoadapt._utils.warn import warn
from isoadapt.encoders._cache._environment import Damaged, environment_in, problems
from isoadapt.encoders._cache._files import lock_in, try_acquire

_TABLES = ("rows", "used", "claims", "counts")
_COUNTS = struct.Struct("<4Q")
_USE = np.dtype([("key", "V20"), ("tick", ">u8")])
_EVICTED_AT_ONCE = 1000
_KEPT = 0.9  # fraction of the maximum size that remains after an eviction
_OVER = 0.05  # fraction of the maximum size that may be written before the next eviction
_PAGES = 1.8  # times the maximum size: pages in use that lead to an eviction
_KEPT_PAGES = 1.75  # times the maximum size: pages in use that remain after an eviction
_DIRTY = 2 * 4096  # bytes of pages that writing or deleting a row may copy


class Store:
    """Vectors in a folder, shared by threads and processes.

    Only `rows.lmdb`, `rows.damaged` and `locks` in the folder are used.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._environment = environment_in(folder, _TABLES)
        self.folder = self._environment.folder

    def read(
        self, keys: Sequence[bytes], group: bytes = b""
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Look rows up; return vectors (len(keys), d) and which rows were found (len(keys),).

        The vectors are None if no row was found. Rows that were not found have arbitrary values.
        All rows of a group have one width. A row of another width is deleted, with a warning.
        """

        def look_up(transaction: Any, tables: Mapping[str, Any]) -> Any:
            vectors: NDArray[np.float32] | None = None
            found, wrong = np.zeros(len(keys), dtype=bool), list[bytes]()
            size = _row_size(transaction, tables, group)
            for i in _order_by_key(keys):
                value = transaction.get(keys[i], db=tables["rows"])
                if value is None:
                    continue
                content = _content(keys[i], value)
                size = max(4, len(content) // 4 * 4) if size is None else size
                if len(content) != size:
                    wrong.append(keys[i])
                    continue
                if vectors is None:
                    vectors = np.empty((len(keys), size // 4), dtype="<f4")
                    target = vectors.data.cast("B")
                target[i * size : (i + 1) * size] = content
                found[i] = True
            return vectors, found, wrong

        vectors, found, wrong = self._environment.run(look_up)
        if wrong:
            self._discard(wrong)
        return vectors, found

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count rows as hits, and mark them as used now."""

        def mark(transaction: Any, tables: Mapping[str, Any]) -> None:
            now = _tick_bytes(_count(transaction, tables, hits=len(keys), ticks=1).ticks)
            for i in _order_by_key(keys):
                if transaction.get(keys[i], db=tables["used"]) is not None:  # not deleted since
                    transaction.put(keys[i], now, db=tables["used"])

        self._environment.run(mark, write=True)

    def put(
        self,
        keys: Sequence[bytes],
        vectors: NDArray[np.float32],
        max_size: int,
        group: bytes = b"",
    ) -> None:
        """Store rows of a group, count them as misses and release the claims on them.

        If keys and rows exceed `max_size` bytes, or their pages too much of the file, the least
        recently used rows are deleted.
        """

        order = _order_by_key(keys)
        row_size = 4 * vectors.shape[1]
        step = max(1, int(_OVER * max_size) // max(_DIRTY, row_size))

        def write(transaction: Any, tables: Mapping[str, Any]) -> bool:
            _set_row_size(transaction, tables, group, row_size)
            now = _tick_bytes(_counts(transaction, tables).ticks + 1)
            size = 0
            for i in part:
                row = _with_checksum(keys[i], vectors[i].astype("<f4").tobytes())
                if transaction.put(keys[i], row, overwrite=False, db=tables["rows"]):
                    size += len(keys[i]) + len(row)
                transaction.put(keys[i], now, db=tables["used"])
                transaction.delete(keys[i], db=tables["claims"])
            size = _count(transaction, tables, misses=len(part), ticks=1, size=size).size
            return size > max_size or _in_use(transaction, tables) > _PAGES * max_size

        for start in range(0, len(order), step):
            part = order[start : start + step]
            if self._environment.run(write, write=True):
                self._evict(max_size, step)

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

        rows, found = 0, list[str]()

        def walk(transaction: Any, tables: Mapping[str, Any]) -> None:
            nonlocal rows, found
            if found:  # this is the empty store that has replaced the damaged one
                return
            rows = transaction.stat(tables["rows"])["entries"]
            found = problems(self._environment.path)
            if not found:  # in a damaged file, a cursor might loop forever
                for key, value in transaction.cursor(tables["rows"]):
                    try:
                        _content(key, value)
                    except Damaged as error:
                        found.append(str(error))
            if found:
                raise Damaged(found[0])

        self._environment.run(walk, write=True)  # a writer excludes others
        return rows, found

    def clear(self) -> None:
        """Delete everything."""
        self._environment.remove()

    def try_lock(self, name: str, locks: list[FileLock]) -> bool:
        """Append a lock in the folder to `locks`, and acquire it; return False if it is held.

        The caller releases all locks of the list, also after an interrupt in this method.
        """
        with self._environment.reraise_unusable():
            locks.append(lock_in(self.folder, name))
            return try_acquire(locks[-1])

    def _discard(self, keys: Sequence[bytes]) -> None:
        """Delete rows of a wrong width, so that they are encoded again."""

        def delete(transaction: Any, tables: Mapping[str, Any]) -> None:
            _count(transaction, tables, size=-sum(_delete(transaction, tables, k) for k in keys))

        self._environment.run(delete, write=True)
        warn(
            f"{len(keys)} vectors in the embedding cache in {str(self.folder)!r} had a wrong width "
            "and were deleted, so their texts are encoded again",
        )

    def _evict(self, max_size: int, step: int) -> None:
        """Delete the least recently used rows, at most `step` at once, until the rest fits."""

        def list_uses(transaction: Any, tables: Mapping[str, Any]) -> NDArray[np.void]:
            found = bytearray()
            for key, tick in transaction.cursor(tables["used"]):
                found += key
                found += tick
            return np.frombuffer(found, dtype=_USE)

        def delete(transaction: Any, tables: Mapping[str, Any]) -> bool:
            gone, surplus = 0, _counts(transaction, tables).size - int(_KEPT * max_size)

            def fits() -> bool:
                pages = _in_use(transaction, tables)
                return gone >= surplus and pages <= _KEPT_PAGES * max_size

            for key, ticks in oldest.tolist():
                if fits():
                    break
                if transaction.get(key, db=tables["used"]) == _tick_bytes(ticks):  # not used since
                    gone += _delete(transaction, tables, key)
            _count(transaction, tables, size=-gone)
            return not fits()

        uses = self._environment.run(list_uses)
        uses = uses[np.argsort(uses["tick"], kind="stable")]
        step = min(step, _EVICTED_AT_ONCE)
        for start in range(0, len(uses), step):
            oldest = uses[start : start + step]
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


def _in_use(transaction: Any, tables: Mapping[str, Any]) -> int:
    """Return the bytes of all pages that hold data; other pages of the file are reused."""
    pages = size = 0
    for table in tables.values():
        stat = transaction.stat(table)
        pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        size = stat["psize"]
    return pages * size


def _delete(transaction: Any, tables: Mapping[str, Any], key: bytes) -> int:
    """Delete a row and its last use; return the bytes of key and row."""
    transaction.delete(key, db=tables["used"])
    row = transaction.pop(key, db=tables["rows"])
    return 0 if row is None else len(key) + len(row)


def _row_size(transaction: Any, tables: Mapping[str, Any], group: bytes) -> int | None:
    """Return the bytes of a vector of a group; None if they are not known."""
    stored = transaction.get(b"size" + group, db=tables["counts"])
    return None if stored is None else int.from_bytes(_content(b"size" + group, stored), "little")


def _set_row_size(transaction: Any, tables: Mapping[str, Any], group: bytes, size: int) -> None:
    """Store the bytes of a vector of a group."""
    key = b"size" + group
    if _row_size(transaction, tables, group) != size:
        row = _with_checksum(key, size.to_bytes(4, "little"))
        transaction.put(key, row, db=tables["counts"])


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
