"""EmbeddingCache: embeddings on disk, so that no text is encoded twice."""

import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from sklearn.utils import check_scalar

from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.messages import reason, warn
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts

Result = TypeVar("Result")
_Encode = Callable[[Texts], NDArray[np.float32]]

_BATCH_SECONDS = 2.0  # of encoding, which is the work that a killed process loses
_SHARE = 0.5  # of the missing texts, at most, in a batch: others may be encoding them too
_CHARACTERS = 5_000  # in the first batch, and to which this share does not apply
_CLAIM_SECONDS = 20.0  # until a claim expires, as its process may have died
_MARK_SECONDS = 3600.0  # in which the use of a vector is noted once
_PROCESS = os.urandom(8).hex()  # unique, unlike the number of a process in a container
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY", "SQLITE_ERROR")
_CREATE = """
    PRAGMA page_size = 16384;
    PRAGMA journal_mode = WAL;
    BEGIN; CREATE TABLE rows (id INTEGER PRIMARY KEY, key BLOB UNIQUE, used REAL, content BLOB);
    CREATE INDEX by_use ON rows (used);
    CREATE TABLE claims (key BLOB PRIMARY KEY, owner TEXT, time REAL);
    CREATE TABLE counts (hits INTEGER, misses INTEGER);
    INSERT INTO counts VALUES (0, 0); COMMIT;
"""
_CLEAR = """
    BEGIN; DELETE FROM rows; DELETE FROM claims; UPDATE counts SET hits = 0, misses = 0; COMMIT;
    VACUUM;
"""
_SIZE = """
    SELECT (page_count - freelist_count) * page_size
    FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""
_EVICT = """
    DELETE FROM rows WHERE id IN (
        SELECT id FROM rows ORDER BY used, id LIMIT 1 + (SELECT count(*) FROM rows) / 20)
"""


class CacheStats(NamedTuple):
    """Contents of a cache, and its use by all processes; :meth:`EmbeddingCache.stats` explains."""

    hits: int
    misses: int
    rows: int
    size: int


@dataclass(frozen=True)
class EmbeddingCache:
    """Store embeddings on disk, shared by encoders, threads and processes.

    The key of a vector is a digest of the content of the checkpoint (weights, tokenizer,
    configuration, pooling, code), the parameters of the encoder that affect vectors, the text or
    pair, and a version number of the encoding procedure. A changed checkpoint, or a release of this
    package that changes vectors, therefore never receives old vectors; a copy of a checkpoint in
    another folder receives the same.

    Parameters
    ----------
    folder : str or path-like
        Folder of the cache, created if it does not exist. It must be on a local disk. Other files
        in the folder are not touched.
    max_size : int, default=10 * 2**30
        Bytes that the file may use, at least 2**20. If it uses more, the least recently used
        vectors are deleted, a twentieth at a time. Uses within the same hour count as one.

    Raises
    ------
    ValueError
        On first use, if a parameter is out of range, or if the encoder's model is a live one.

    Warns
    -----
    UserWarning
        If vectors are damaged: they are encoded again. If the file is damaged: it is kept beside a
        new one. If the folder cannot be used, for example because the disk is full or read-only:
        encoding continues without the cache.

    See Also
    --------
    TransformerEncoder : Takes a cache, or its folder, as `cache`.

    Notes
    -----
    The store is an SQLite file with a checksum for every vector. A process or thread claims texts
    before it encodes them, so no text is encoded twice. Others encode other texts meanwhile, and
    wait only if all texts that they need are claimed. A claim ends after 20 seconds.

    Vectors computed on a GPU and on a CPU, in batches of other composition, or by other versions of
    torch and transformers, differ in the last bits. The cache treats them as equal. Everyone who
    can write to the folder can change vectors: the checksums detect accidental damage only.

    Examples
    --------
    >>> from isoadapt import EmbeddingCache, TransformerEncoder
    >>> cache = EmbeddingCache("path/to/cache", max_size=2 * 2**30)
    >>> encoder = TransformerEncoder("path/to/model", cache=cache)
    >>> encoder.transform(["One text.", "Another.", "One text."])  # doctest: +SKIP
    array([[ 0.02, ...]], dtype=float32)
    >>> cache.stats()  # doctest: +SKIP
    CacheStats(hits=0, misses=2, rows=2, size=131072)
    """

    folder: str | os.PathLike[str]
    max_size: int = 10 * 2**30

    def stats(self) -> CacheStats:
        """Return the use by all processes since the cache was created, and its contents.

        They are a named tuple (hits, misses, rows, size): vectors read, texts encoded, vectors
        stored, and bytes of the file that are in use. Equal texts in a call count once.
        """
        query = f"SELECT hits, misses, (SELECT count(*) FROM rows), ({_SIZE}) FROM counts"
        return CacheStats(*self._run(lambda database: database.execute(query).fetchone()))

    def clear(self) -> None:
        """Delete all vectors and counts; processes that use the cache go on with an empty one."""
        self._run(lambda database: database.executescript(_CLEAR))

    def _read(self, keys: Iterable[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """Return the vectors (d,) of those keys that are stored, and count hits."""
        query = "SELECT id, used < ?, content FROM rows WHERE key = ?"

        def look_up(database: sqlite3.Connection) -> tuple[dict[bytes, Any], list[Any]]:
            now = time.time()
            ago = now - _MARK_SECONDS
            database.execute("BEGIN")
            rows = {key: database.execute(query, (ago, key)).fetchone() for key in keys}
            database.commit()
            sound = {key: row for key, row in rows.items() if row and _is_sound(key, row[2])}
            wrong = [row[:1] for key, row in rows.items() if row and key not in sound]
            unmarked = [(now, row) for row, is_unmarked, _ in sound.values() if is_unmarked]
            if sound:
                database.execute("UPDATE counts SET hits = hits + ?", (len(sound),))
                database.executemany("UPDATE rows SET used = ? WHERE id = ?", unmarked)
            database.executemany("DELETE FROM rows WHERE id = ?", wrong)
            return sound, wrong

        sound, wrong = self._run(look_up)
        if wrong:
            warn(
                f"{len(wrong)} vectors of the embedding cache in {str(self.folder)!r} were "
                "damaged; their texts are encoded again"
            )
        return {key: np.frombuffer(row[2], "<f4", offset=4) for key, row in sound.items()}

    def _claim(self, owner: str, keys: Iterable[bytes]) -> set[bytes]:
        """Claim keys that no other owner has claimed, and return them."""
        query = "INSERT OR IGNORE INTO claims VALUES (?, ?, ?)"

        def insert(database: sqlite3.Connection) -> set[bytes]:
            now = time.time()
            # Also claims of an interrupted call, and claims from before the clock was set back.
            valid = (now - _CLAIM_SECONDS, now + _CLAIM_SECONDS, owner)
            database.execute(
                "DELETE FROM claims WHERE time NOT BETWEEN ? AND ? OR owner = ?", valid
            )
            return {key for key in keys if database.execute(query, (key, owner, now)).rowcount}

        return self._run(insert)

    def _put(self, owner: str, vectors: dict[bytes, NDArray[np.float32]]) -> None:
        """Store claimed vectors, and delete the least recently used if the file is too large."""
        query = "INSERT OR IGNORE INTO rows (key, used, content) VALUES (?, ?, ?)"

        def insert(database: sqlite3.Connection) -> None:
            now = time.time()
            contents = ((key, v.astype("<f4").tobytes()) for key, v in vectors.items())
            database.executemany(query, ((key, now, _content(key, v)) for key, v in contents))
            database.execute("UPDATE counts SET misses = misses + ?", (len(vectors),))
            database.execute("DELETE FROM claims WHERE owner = ?", (owner,))
            while database.execute(_SIZE).fetchone()[0] > self.max_size:
                if not database.execute(_EVICT).rowcount:
                    break

        self._run(insert)

    def _run(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Call an operation with the database, once more with a new one if the file is damaged."""
        file = self._file()
        try:
            return _run_in(file, operation)
        except sqlite3.DatabaseError as error:
            damaged = getattr(error, "sqlite_errorname", _DAMAGE[0]).startswith(_DAMAGE)
            if not damaged or not os.access(file, os.W_OK):
                raise
            new = file.with_stem(f"vectors-{int(file.stem[-3:]) + 1:03}")
            warn(
                f"the embedding cache {str(file)!r} is damaged ({error}); texts are encoded again "
                f"and stored in {new.name!r}; you may delete the damaged file"
            )
            return _run_in(new, operation)

    def _file(self) -> Path:
        """Return the path of the newest file; the older ones are damaged."""
        try:
            folder = Path(self.folder).expanduser().absolute()
        except RuntimeError as error:  # there is no home
            raise OSError(reason(error)) from error
        files = folder.glob("vectors-[0-9][0-9][0-9].sqlite")
        return max(files, default=folder / "vectors-001.sqlite")


@dataclass
class Request:
    """The vectors (n, d) of distinct texts, which are read from a cache or encoded."""

    cache: EmbeddingCache
    texts: Texts
    identify: Callable[[], Identity]
    opened: Callable[[], _Encode]  # loads the model
    progress: Callable[[int], Any]  # is given the number of texts that were read

    def vectors(self) -> NDArray[np.float32]:
        """Read the vectors that are stored, and encode the others."""
        cache, self._identity = self.cache, self.identify()
        check_scalar(cache.max_size, "max_size", Integral, min_val=2**20)
        self._owner = f"{_PROCESS}-{threading.get_native_id()}"  # another one after a fork
        self._keys = np.array(row_keys(self._identity, self.texts), dtype=object)
        self._lengths = self.texts.lengths()
        self._found: dict[bytes, NDArray[np.float32]] = {}
        try:
            self._read(self._keys)
            if len(self._missing()):
                encode = self.opened()  # before texts are claimed
                with closing(_open(cache._file())) as kept:  # so that other closes write no log
                    kept.execute("SELECT * FROM counts").fetchall()
                    self._encode_missing(encode)
        except (sqlite3.Error, OSError) as error:
            warn(f"encoding continues without the cache {str(cache.folder)!r}: {error}")
        if len(rows := self._missing()):
            self._found |= self._encode(rows, self.opened())
        return np.array([self._found[key] for key in self._keys])

    def _encode_missing(self, encode: _Encode) -> None:
        """Encode batches of texts that nobody else encodes, and read those that others stored."""
        characters, queue = float(_CHARACTERS), self._missing()
        while len(queue):
            lengths = self._lengths[queue].cumsum()
            most = min(characters, max(_CHARACTERS, _SHARE * lengths[-1]))
            rows, queue = np.split(queue, [max(1, np.searchsorted(lengths, most, side="right"))])
            claimed = self.cache._claim(self._owner, self._keys[rows])
            found = self._read(self._keys[rows])  # what others stored before the claim
            rows = rows[[key in claimed and key not in found for key in self._keys[rows]]]
            if len(rows):
                started = time.perf_counter()
                vectors = self._encode(rows, encode)
                rate = self._lengths[rows].sum() / (time.perf_counter() - started)
                if self.identify() != self._identity:  # the model has changed
                    self._found.clear()  # all are encoded again, and not stored
                    return
                self._found |= vectors
                self.cache._put(self._owner, vectors)
                characters = float(np.clip(_BATCH_SECONDS * rate, characters / 2, characters * 2))
            elif not found:
                time.sleep(0.02)
            if not len(queue):
                queue = self._missing()

    def _encode(self, rows: NDArray[np.int64], encode: _Encode) -> dict[bytes, NDArray[np.float32]]:
        """Return the vectors of some texts by their keys."""
        return dict(zip(self._keys[rows], encode(self.texts.take(rows)), strict=True))

    def _read(self, keys: Iterable[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """Read the vectors of those keys that are stored."""
        found = self.cache._read(keys)
        self._found |= found
        self.progress(len(found))
        return found

    def _missing(self) -> NDArray[np.int64]:
        """Return the indices of texts without a vector, longest first."""
        longest_first = np.argsort(-self._lengths, kind="stable")
        return longest_first[[key not in self._found for key in self._keys[longest_first]]]


def _run_in(file: Path, operation: Callable[[sqlite3.Connection], Result]) -> Result:
    """Call an operation in a transaction of its own."""
    with closing(_open(file)) as database, database:
        database.execute("PRAGMA synchronous = NORMAL")
        return operation(database)


def _open(file: Path) -> sqlite3.Connection:
    """Open the database in a file, which is created if it is missing."""
    writable_folder(file.parent)
    if not file.exists():
        with FileLock(file.with_name("lock")):
            if not file.exists():
                with atomic_path(file) as new, closing(sqlite3.connect(new)) as database:
                    database.executescript(_CREATE)
    database = sqlite3.connect(f"{file.as_uri()}?mode=rw", timeout=60, uri=True)
    database.text_factory = bytes
    return database


def _content(key: bytes, vector: bytes) -> bytes:
    """Return the CRC-32 of key and vector, and the vector."""
    return zlib.crc32(vector, zlib.crc32(key)).to_bytes(4, "little") + vector


def _is_sound(key: bytes, content: Any) -> bool:
    """Return whether a content has the right checksum."""
    return isinstance(content, bytes) and content == _content(key, content[4:])
