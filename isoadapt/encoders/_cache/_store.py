"""The store of a cache: an LMDB file with vectors by key, their last use, and counts.

An entry is a CRC-32 of key and content, and the content: a vector in float32. Every operation is
one transaction, so a killed process leaves no partial changes. LMDB writes data to disk before the
page that refers to them, so a crash of the machine leaves none either.
"""

import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import numpy as np
from filelock import FileLock, Timeout
from lmdb.verify import VerifyError, verify
from numpy.typing import NDArray

from isoadapt._utils.messages import warn

Result = TypeVar("Result")

_TABLES = (b"rows", b"used", b"counts")
_COUNTED = ("hits", "misses", "ticks", "size")
_FIRST_MAP = 2**30  # bytes of address space, not of disk space; doubled when full
_READERS = 1024
_LOCK_FILE = 17 * 4096  # bytes of LMDB's lock file: 64 for each reader, and its header
_POLL_SECONDS = 0.002
_COUNTS, _TICK = struct.Struct("<4Q"), struct.Struct(">Q")
_USE = np.dtype([("key", "V20"), ("tick", ">u8")])
_EVICTED_AT_ONCE = 1000
_KEPT = 0.9  # fraction of the maximum size that remains after an eviction
_OVER = 0.05  # fraction of the maximum size that may be written before the next eviction
_DIRTY = 2 * 4096  # bytes of pages that writing or deleting a row may copy


class Damaged(Exception):
    """The content read differs from the content written."""


class Unusable(OSError):
    """The folder or the disk prevents the operation."""


class Store:
    """Vectors in `rows.lmdb` in a folder, shared by threads and processes.

    A damaged file is deleted with a warning and replaced by an empty one. LMDB checks much of what
    it reads, but some damage would end the process. The modification time that the file has after a
    transaction is therefore stored in `sealed`. If it has another one when it is opened,
    :func:`lmdb.verify.verify` checks it first. Errors of the folder or the disk are raised as
    :class:`Unusable`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "rows.lmdb"
        self._data, self._seal_file = self._path / "data.mdb", self._path / "sealed"
        self._threads = threading.RLock()
        self._environment: Any = None
        self._rows = self._used = self._counts = self._environment  # the tables
        self._file: tuple[int, int] | None = None  # device and inode of the file that is open

    def close(self) -> None:
        """Close the file; the next operation opens it again."""
        if self._environment is not None:
            self._environment.close()
        self._environment = None

    def read(self, keys: Sequence[bytes]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Look rows up; return vectors (len(keys), d) and which rows were found (len(keys),).

        Rows that were not found have arbitrary values; d is 0 if none was found.
        """

        def look_up(transaction: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
            vectors, found = np.empty((len(keys), 0), dtype="<f4"), np.zeros(len(keys), dtype=bool)
            for i in _order_by_key(keys):
                row = transaction.get(keys[i], db=self._rows)
                if row is None:
                    continue
                vector = np.frombuffer(_content(keys[i], row), dtype="<f4")
                if not vectors.size:
                    vectors = np.empty((len(keys), len(vector)), dtype="<f4")
                if len(vector) != (size := vectors.shape[1]):
                    raise Damaged(f"entry {keys[i].hex()} has {len(vector)} numbers, not {size}")
                vectors[i], found[i] = vector, True
            return vectors, found

        return self._run(look_up)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count rows as hits, and mark them as used now."""

        def mark(transaction: Any) -> None:
            now = _TICK.pack(self._count(transaction, hits=len(keys), ticks=1)["ticks"])
            for key in sorted(keys):
                if transaction.get(key, db=self._used) is not None:  # not deleted
                    transaction.put(key, now, db=self._used)

        self._run(mark, write=True)

    def put(self, keys: Sequence[bytes], vectors: NDArray[np.float32], max_size: int) -> None:
        """Store rows and count them as misses; delete the least recently used beyond `max_size`."""
        order = _order_by_key(keys)
        step = max(1, int(_OVER * max_size) // max(_DIRTY, 4 * vectors.shape[1]))

        def write(transaction: Any) -> int:
            now = _TICK.pack(self._count(transaction, misses=len(part), ticks=1)["ticks"])
            size = 0
            for i in part:
                vector = vectors[i].astype("<f4").tobytes()
                row = _checksum(keys[i], vector) + vector
                if transaction.put(keys[i], row, overwrite=False, db=self._rows):
                    size += len(keys[i]) + len(row)
                transaction.put(keys[i], now, db=self._used)
            return self._count(transaction, size=size)["size"]

        for start in range(0, len(order), step):
            part = order[start : start + step]
            if self._run(write, write=True) > max_size:
                self._evict(max_size, min(step, _EVICTED_AT_ONCE))

    def counts(self) -> tuple[int, int, int, int]:
        """Return hits, misses, rows, and the size of keys and rows in bytes."""

        def look_up(transaction: Any) -> tuple[int, int, int, int]:
            found, rows = self._count(transaction), transaction.stat(self._rows)["entries"]
            return found["hits"], found["misses"], rows, found["size"]

        return self._run(look_up)

    def check(self) -> tuple[int, list[str]]:
        """Check the whole file, and delete it if it is damaged; return rows and problems."""

        def walk(transaction: Any) -> tuple[int, list[str]]:
            found = _problems(self._path)
            if not found:  # in a damaged file, a cursor might loop forever
                rows = transaction.cursor(self._rows)
                wrong = (key.hex() for key, row in rows if row[:4] != _checksum(key, row[4:]))
                found = [f"the checksum of entry {key} is wrong" for key in wrong]
            return transaction.stat(self._rows)["entries"], found

        rows, found = self._run(walk, write=True)  # a writer excludes others
        if found:
            with self._threads, self._unusable_raised():
                self._recover(Damaged(found[0]))
        return rows, found

    def clear(self) -> None:
        """Delete everything."""
        with self._threads, self._unusable_raised(), self._other_writers_excluded():
            self.close()
            if self._path.exists():
                shutil.rmtree(self._path)

    def lock(self, name: str) -> FileLock:
        """Return a lock in the folder, which is not held yet."""
        return FileLock(self.folder / "locks" / f"{name}.lock")

    def try_lock(self, lock: FileLock) -> bool:
        """Acquire a lock of the folder unless another thread or process holds it."""
        with self._unusable_raised(), suppress(Timeout):
            lock.acquire(blocking=False)
        return lock.is_locked

    # Transactions

    def _run(self, operation: Callable[[Any], Result], *, write: bool = False) -> Result:
        """Run an operation in a transaction, again if the map was too small or the file damaged."""
        with self._threads, self._unusable_raised():
            while True:
                try:
                    alone = write or not self._is_open()
                    with self._other_writers_excluded() if alone else nullcontext():
                        self._open()
                        with self._environment.begin(write=write, buffers=not write) as transaction:
                            result = operation(transaction)
                        if write:
                            self._seal()
                        return result
                except lmdb.MapResizedError:
                    self._environment.set_mapsize(0)
                except lmdb.MapFullError:
                    self._environment.reader_check()
                    self._environment.set_mapsize(2 * self._environment.info()["map_size"])
                except (Damaged, lmdb.Error) as error:
                    self._recover(error)

    @contextmanager
    def _other_writers_excluded(self) -> Iterator[None]:
        """Hold the lock of writers. LMDB has one too, but a wait for it cannot be interrupted."""
        lock = self.lock("write")
        try:
            lock.acquire(poll_interval=_POLL_SECONDS)
            yield
        finally:
            lock.release(force=True)  # has no effect on a lock that is not held

    def _is_open(self) -> bool:
        """Return whether the file of the folder is open, and not one that was deleted since."""
        return self._environment is not None and self._file == self._file_id()

    def _open(self) -> None:
        """Open the file unless it is open; without a valid seal, check it first."""
        if self._is_open():
            return
        self.close()
        self._path.mkdir(parents=True, exist_ok=True)
        with (self._path / "lock.mdb").open("ab") as file:  # it is mapped into memory, and a write
            file.write(bytes(max(0, _LOCK_FILE - file.tell())))  # without space ends the process
        self._file = self._file_id()
        try:
            self._environment = lmdb.open(
                str(self._path),
                map_size=_FIRST_MAP,
                max_dbs=len(_TABLES),
                max_readers=_READERS,
                metasync=False,
            )
            self._environment.reader_check()
            seal = self._seal_file.read_bytes() if self._seal_file.exists() else None
            if seal != self._time() and (found := _problems(self._path)):
                raise Damaged(found[0])
            self._rows, self._used, self._counts = map(self._environment.open_db, _TABLES)
            self._seal()
        except BaseException as error:
            self.close()
            if self._file is None and isinstance(error, lmdb.Error):  # such as a full disk
                self._data.unlink(missing_ok=True)
                raise OSError(str(error)) from error
            raise
        self._file = self._file_id()

    def _seal(self) -> None:
        """Store the modification time of the file."""
        self._seal_file.write_bytes(self._time())

    def _time(self) -> bytes:
        """Return the modification time of the file."""
        return self._data.stat().st_mtime_ns.to_bytes(8, "big", signed=True)

    def _file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the file; None if it does not exist."""
        with suppress(FileNotFoundError):
            stat = self._data.stat()
            return stat.st_dev, stat.st_ino
        return None

    def _recover(self, error: Exception) -> None:
        """Delete the file with a warning if it is damaged; otherwise raise `error`."""
        self.close()
        with self._other_writers_excluded():
            if self._file != self._file_id():
                return  # another process has deleted it already
            damaged = isinstance(error, Damaged) or (self._file and _problems(self._path))
            if not damaged:
                raise error
            shutil.rmtree(self._path)
        warn(
            f"the embedding cache in {str(self.folder)!r} was damaged ({error}); it was replaced "
            "by an empty one, so texts are encoded again"
        )

    @contextmanager
    def _unusable_raised(self) -> Iterator[None]:
        """Turn errors of the folder, the disk or LMDB into :class:`Unusable`."""
        try:
            yield
        except (OSError, lmdb.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise Unusable(
                f"cache={str(self.folder)!r} cannot be used ({reason}); choose a folder that can "
                "be written to, or cache=None"
            ) from error

    # Counts and eviction

    def _count(self, transaction: Any, **more: int) -> dict[str, int]:
        """Add to vectors read, texts encoded, operations and bytes; return the new counts."""
        stored = transaction.get(b"counts", db=self._counts)
        counts = 4 * (0,) if stored is None else _COUNTS.unpack(_content(b"counts", stored))
        new = {name: n + more.get(name, 0) for name, n in zip(_COUNTED, counts, strict=True)}
        if more:
            content = _COUNTS.pack(*new.values())
            row = _checksum(b"counts", content) + content
            transaction.put(b"counts", row, db=self._counts)
        return new

    def _evict(self, max_size: int, step: int) -> None:
        """Delete the least recently used rows, at most `step` at once, until the rest fits."""

        def list_uses(transaction: Any) -> bytearray:
            found = bytearray()
            for part in chain.from_iterable(transaction.cursor(self._used)):
                found += part
            return found

        def delete(transaction: Any) -> int:
            gone = 0
            for key in oldest:
                transaction.delete(key, db=self._used)
                row = transaction.pop(key, db=self._rows)
                gone += 0 if row is None else len(key) + len(row)
            return self._count(transaction, size=-gone)["size"]

        uses = np.frombuffer(self._run(list_uses), dtype=_USE)
        keys = uses["key"][np.argsort(uses["tick"], kind="stable")].tolist()
        for start in range(0, len(keys), step):
            oldest = keys[start : start + step]
            if self._run(delete, write=True) <= _KEPT * max_size:
                return


_STORES: dict[tuple[int, Path], Store] = {}  # by process and folder


def store_in(folder: str | os.PathLike[str]) -> Store:
    """Return the only store of this process in a folder, without opening it.

    All names of the same folder give the same store, because LMDB must not open a file twice. A
    forked process has stores of its own.
    """
    process, path = os.getpid(), Path(folder).expanduser().resolve()
    for (owner, _), store in list(_STORES.items()):
        if owner != process:  # forget it, because closing it would release what its owner reads
            store._environment = store._rows = store._used = store._counts = None
    return _STORES.setdefault((process, path), Store(path))


def _order_by_key(keys: Sequence[bytes]) -> list[int]:
    """Return the positions sorted by key, so that neighbours on disk are accessed in sequence."""
    return sorted(range(len(keys)), key=keys.__getitem__)


def _content(key: bytes, value: Any) -> Any:
    """Return the content of an entry; raise :class:`Damaged` if its checksum is wrong."""
    if value[:4] != _checksum(key, value[4:]):
        raise Damaged(f"the checksum of entry {key.hex()} is wrong")
    return value[4:]


def _checksum(key: bytes, content: Any) -> bytes:
    """Compute the CRC-32 of key and content."""
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(4, "little")


def _problems(path: Path) -> list[str]:
    """Check the file of a store without LMDB; return the problems found."""
    try:
        return verify(str(path))
    except (VerifyError, FileNotFoundError) as error:
        return [str(error)]
