"""An LMDB environment that threads and processes share, and that recovers from damage.

Every operation is one transaction, so a killed process leaves no partial changes. LMDB writes data
to disk before the page that refers to them, so a crash of the machine leaves none either.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lmdb
from filelock import FileLock
from lmdb.verify import VerifyError, verify

from isoadapt._utils.warn import warn
from isoadapt.encoders._cache._files import lock_in, permit_group, reserve, while_held

Result = TypeVar("Result")
Operation = Callable[[lmdb.Transaction, Mapping[str, Any]], Result]

_FIRST_MAP = 2**30  # bytes of address space, not of disk space; doubled when full
_READERS = 1024
_LOCK_FILE = 17 * 4096  # bytes of LMDB's lock file: 64 for each reader, and its header
_OPEN_AT_ONCE = 8  # environments; each takes three file descriptors and its map
_FULL = 2**20  # free bytes below which a disk is regarded as full


class Damaged(Exception):
    """The content read differs from the content written."""


class Unusable(OSError):
    """The folder or the disk prevents the operation."""


class Environment:
    """The environment `rows.lmdb` in a folder, opened on first use.

    If it is damaged, it is renamed to `rows.damaged` with a warning and replaced by an empty one.
    LMDB checks much of what it reads, but some damage would terminate the process. The modification
    time that the data file has after a transaction is therefore stored in the file `sealed`. If
    the data file has another one, :func:`lmdb.verify.verify` checks it before it is opened.
    """

    def __init__(self, folder: Path, tables: tuple[str, ...]) -> None:
        self.folder = folder
        self.path = folder / "rows.lmdb"
        self.lock = threading.RLock()
        self._names = tables
        self._tables: dict[str, Any] = {}
        self._environment: Any = None
        self._file: tuple[int, int] | None = None
        self._last_use = 0.0
        self._writers: FileLock | None = None

    def run(self, operation: Operation[Result], *, write: bool = False) -> Result:
        """Run an operation in a transaction, again if the environment had to be recovered.

        The operation gets the transaction and the tables by name; a reader gets memoryviews. It may
        be called more than once, and raises :class:`Damaged` if it finds damage. Only one process
        writes at a time. Errors of the folder or the disk are raised as :class:`Unusable`.
        """
        with self.reraise_unusable():
            if self._environment is None:
                _close_others(self)
        with self.lock, self.reraise_unusable():  # no transaction is open when the map is resized
            self._last_use = time.monotonic()
            while True:
                environment = self._open()
                try:
                    if write:
                        return self._while_writing(partial(self._write, environment, operation))
                    with environment.begin(buffers=True) as transaction:
                        return operation(transaction, self._tables)
                except lmdb.MapResizedError:
                    environment.set_mapsize(0)
                except lmdb.MapFullError:
                    environment.reader_check()
                    environment.set_mapsize(2 * environment.info()["map_size"])
                except (Damaged, lmdb.Error) as error:
                    self.recover(error)

    def _write(self, environment: Any, operation: Operation[Result]) -> Result:
        """Run an operation in a transaction that writes, under the lock of writers."""
        with environment.begin(write=True) as transaction:
            result = operation(transaction, self._tables)
        self._seal()
        return result

    def recover(self, error: Exception) -> None:
        """Set the environment aside if it is damaged; otherwise raise `error` again."""
        found = self._file
        self.close()

        def replace() -> None:
            if found == self.file_id():  # otherwise another process has replaced it already
                self._replace(error)

        self._while_alone(replace)

    def remove(self) -> None:
        """Delete everything, including an environment that was set aside."""

        def delete() -> None:
            self._set_aside()
            shutil.rmtree(self.folder / "rows.damaged", ignore_errors=True)

        with self.lock, self.reraise_unusable():
            self._while_alone(delete)

    def close(self) -> None:
        """Close the environment; the next operation opens it again."""
        with self.lock:
            if self._environment is not None:
                self._environment.close()
            self._environment = self._file = self._writers = None

    def close_if_idle(self) -> None:
        """Close the environment unless another thread is using it."""
        if self.lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.lock.release()

    def has_open(self, file: tuple[int, int] | None) -> bool:
        """Return whether the data file with this device and inode is open."""
        return self._environment is not None and self._file == file

    @property
    def last_use(self) -> float | None:
        """Time of the last operation, or None if the environment is closed."""
        return None if self._environment is None else self._last_use

    def _open(self) -> Any:
        """Return the open environment; reopen it if its file was replaced."""
        if self._environment is None or self._file != self.file_id():
            self.close()
            self._while_alone(self._load_or_replace)
        return self._environment

    def _load_or_replace(self) -> None:
        """Open the environment; set it aside if it is damaged, and open an empty one."""
        while self._environment is None:
            try:
                self._load()
            except lmdb.MapResizedError:
                pass  # another process has just made the file larger
            except lmdb.Error as error:
                self._replace(error)

    def _load(self) -> None:
        """Open the environment, after checking its file if it is not sealed."""
        self.path.mkdir(exist_ok=True)
        reserve(self.path / "lock.mdb", _LOCK_FILE)
        environment = lmdb.open(
            str(self.path),
            map_size=_FIRST_MAP,
            max_dbs=len(self._names),
            max_readers=_READERS,
            metasync=False,
            mode=0o666,
        )
        try:
            environment.reader_check()
            self._while_writing(partial(self._check_and_seal, environment))
            for path in (self.path, *self.path.iterdir()):
                permit_group(path, self.folder)
            self._file = self.file_id()
            self._environment = environment
        except BaseException:
            environment.close()
            raise

    def _check_and_seal(self, environment: Any) -> None:
        """Check the file if it is not sealed, and open the tables; no other process writes."""
        if not self._is_sealed(environment) and (found := problems(self.path)):
            raise lmdb.CorruptedError(found[0])
        self._tables = {name: environment.open_db(name.encode()) for name in self._names}
        self._seal()

    def _is_sealed(self, environment: Any) -> bool:
        """Return whether the file is complete and unchanged since the last transaction."""
        data, seal = (self.path / name for name in ("data.mdb", "sealed"))
        pages = environment.info()["last_pgno"] + 1
        long_enough = data.stat().st_size >= pages * environment.stat()["psize"]
        return long_enough and seal.exists() and seal.read_bytes() == _modified(data)

    def _seal(self) -> None:
        """Store the modification time of the data in the file `sealed`.

        It is the content of that file, because only its owner may set its modification time.
        """
        with suppress(FileNotFoundError):  # renamed by another process
            changed = _modified(self.path / "data.mdb")
            seal = os.open(self.path / "sealed", os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.write(seal, changed)
            finally:
                os.close(seal)

    def _replace(self, error: Exception) -> None:
        """Set a damaged environment aside with a warning; raise `error` if it is sound."""
        if not isinstance(error, Damaged) and not problems(self.path):
            raise error
        self._set_aside()
        warn(
            f"the embedding cache in {str(self.folder)!r} was damaged ({error}); it was renamed to "
            "rows.damaged and replaced by an empty one, so texts are encoded again",
        )

    def _set_aside(self) -> None:
        """Rename the environment to `rows.damaged`, replacing an earlier one."""
        self.close()
        aside = self.folder / "rows.damaged"
        shutil.rmtree(aside, ignore_errors=True)
        if self.path.exists():
            self.path.rename(aside)

    def _while_alone(self, action: Callable[[], None]) -> None:
        """Call a function under the lock of opening, renaming and removing the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while_held(lock_in(self.folder, "store"), action)

    def _while_writing(self, action: Callable[[], Result]) -> Result:
        """Call a function under the lock of writers.

        LMDB has one too, but a wait for it cannot be interrupted.
        """
        if self._writers is None:
            self._writers = lock_in(self.folder, "write")
        return while_held(self._writers, action)

    def file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the data file; None if it does not exist."""
        try:
            stat = (self.path / "data.mdb").stat()
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    @contextmanager
    def reraise_unusable(self) -> Iterator[None]:
        """Turn errors of the folder, the disk or LMDB into :class:`Unusable`."""
        try:
            yield
        except (OSError, lmdb.Error) as error:
            reason = getattr(error, "strerror", None) or error
            with suppress(OSError):  # LMDB reports a partial write as an input/output error
                if isinstance(error, lmdb.Error) and shutil.disk_usage(self.folder).free < _FULL:
                    reason = f"{reason}; the disk is full"
            raise Unusable(
                f"cache={str(self.folder)!r} cannot be used ({reason}); choose a folder that can "
                "be written to, or cache=None"
            ) from error


_ENVIRONMENTS: dict[Path, Environment] = {}
_ENVIRONMENTS_LOCK = threading.Lock()


def environment_in(folder: str | os.PathLike[str], tables: tuple[str, ...]) -> Environment:
    """Return the only environment of this process in a folder, without opening it.

    All names of the same folder give the same environment, because LMDB must not open a file twice.
    """
    path = Path(folder).expanduser().resolve()
    with _ENVIRONMENTS_LOCK:
        return _ENVIRONMENTS.setdefault(path, Environment(path, tables))


def _close_others(environment: Environment) -> None:
    """Before an environment is opened, close its file under a former name, and idle environments.

    The caller holds the lock of no environment, so a fork that waits for all of them can proceed.
    """
    with _ENVIRONMENTS_LOCK:
        others = [other for other in _ENVIRONMENTS.values() if other is not environment]
        file = environment.file_id()
        for other in others:
            if other.has_open(file):
                with other.lock:
                    other.close()
        opened = [(use, other) for other in others if (use := other.last_use) is not None]
        opened.sort(key=lambda pair: pair[0], reverse=True)
        for _, other in opened[_OPEN_AT_ONCE - 1 :]:
            other.close_if_idle()


def _before_fork() -> None:
    """Close every environment: a child process must not use or reopen its parent's."""
    _ENVIRONMENTS_LOCK.acquire()
    for environment in _ENVIRONMENTS.values():
        environment.lock.acquire()
        environment.close()


def _after_fork() -> None:
    """Release the locks that were acquired before the fork."""
    for environment in _ENVIRONMENTS.values():
        environment.lock.release()
    _ENVIRONMENTS_LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


def _modified(file: Path) -> bytes:
    """Return the time at which a file was last modified."""
    return file.stat().st_mtime_ns.to_bytes(8, "big", signed=True)


def problems(path: Path) -> list[str]:
    """Check the file of an environment without LMDB; return the problems found."""
    try:
        return verify(str(path))
    except (VerifyError, FileNotFoundError) as error:
        return [str(error)]
