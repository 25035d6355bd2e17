"""An LMDB environment that threads and processes share, and that recovers from damage.

Every operation is one transaction, so a killed process leaves no partial changes. LMDB writes data
to disk before the page that refers to them, so a crash of the machine leaves none either.
"""

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb
from filelock import FileLock
from lmdb.verify import VerifyError, verify

Result = TypeVar("Result")
Operation = Callable[[lmdb.Transaction, Mapping[str, Any]], Result]

_FIRST_MAP = 2**30  # bytes of address space, not of disk space; doubled when full
_READERS = 1024


class Damaged(Exception):
    """The content read differs from the content written."""


class Unusable(OSError):
    """The folder or the disk prevents the operation."""


class Environment:
    """The environment `rows.lmdb` in a folder, opened on first use.

    If it is damaged, it is renamed to `rows.damaged` with a warning and replaced by an empty one.
    LMDB checks much of what it reads, but some damage would terminate the process. The time of the
    last transaction is therefore stored as the modification time of the file `sealed`. If the data
    file has another modification time, :func:`lmdb.verify.verify` checks it before it is opened.
    """

    def __init__(self, folder: Path, tables: tuple[str, ...]) -> None:
        self.folder = folder
        self.path = folder / "rows.lmdb"
        self.lock = threading.RLock()
        self._names = tables
        self._tables: dict[str, Any] = {}
        self._environment: Any = None
        self._file: tuple[int, int] | None = None

    def run(self, operation: Operation[Result], *, write: bool = False) -> Result:
        """Run an operation in a transaction, again if the environment had to be recovered.

        The operation gets the transaction and the tables by name; a reader gets memoryviews. It may
        be called more than once, and raises :class:`Damaged` if it finds damage. Only one process
        writes at a time. Errors of the folder or the disk are raised as :class:`Unusable`.
        """
        with self.lock, self._reraise_unusable():  # no transaction is open when the map is resized
            while True:
                environment = self._open()
                try:
                    with environment.begin(write=write, buffers=not write) as transaction:
                        result = operation(transaction, self._tables)
                    if write:
                        self._seal()
                    return result
                except lmdb.MapResizedError:
                    environment.set_mapsize(0)
                except lmdb.MapFullError:
                    environment.reader_check()
                    environment.set_mapsize(2 * environment.info()["map_size"])
                except (Damaged, lmdb.Error) as error:
                    self.recover(error)

    def recover(self, error: Exception) -> None:
        """Set the environment aside if it is damaged; otherwise raise `error` again."""
        found = self._file
        self.close()
        with self._file_lock():
            if found == self._file_id():  # otherwise another process has replaced it already
                self._replace(error)

    def remove(self) -> None:
        """Delete everything, including an environment that was set aside."""
        with self.lock, self._reraise_unusable(), self._file_lock():
            self._set_aside()
            shutil.rmtree(self.folder / "rows.damaged", ignore_errors=True)

    def close(self) -> None:
        """Close the environment; the next operation opens it again."""
        with self.lock:
            if self._environment is not None:
                self._environment.close()
            self._environment = self._file = None

    def _open(self) -> Any:
        """Return the open environment; reopen it if its file was replaced."""
        if self._environment is None or self._file != self._file_id():
            self.close()
            with self._file_lock():
                while self._environment is None:
                    try:
                        self._load()
                    except lmdb.MapResizedError:
                        pass  # another process has just made the file larger
                    except lmdb.Error as error:
                        self._replace(error)
        return self._environment

    def _load(self) -> None:
        """Open the environment, after checking its file if it is not sealed."""
        self.path.mkdir(exist_ok=True)
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
            with environment.begin(write=True):  # no other process writes during the check
                if not self._is_sealed(environment) and (found := problems(self.path)):
                    raise lmdb.CorruptedError(found[0])
            self._tables = {name: environment.open_db(name.encode()) for name in self._names}
        except BaseException:
            environment.close()
            raise
        self._environment, self._file = environment, self._file_id()
        (self.path / "sealed").touch()
        self._seal()

    def _is_sealed(self, environment: Any) -> bool:
        """Return whether the file is complete and unchanged since the last transaction."""
        data, seal = (self.path / name for name in ("data.mdb", "sealed"))
        pages = environment.info()["last_pgno"] + 1
        long_enough = data.stat().st_size >= pages * environment.stat()["psize"]
        return long_enough and seal.exists() and seal.stat().st_mtime_ns == data.stat().st_mtime_ns

    def _seal(self) -> None:
        """Store the modification time of the data as that of the file `sealed`."""
        with suppress(FileNotFoundError):  # renamed by another process
            changed = (self.path / "data.mdb").stat().st_mtime_ns
            os.utime(self.path / "sealed", ns=(changed, changed))

    def _replace(self, error: Exception) -> None:
        """Set a damaged environment aside with a warning; raise `error` if it is sound."""
        if not isinstance(error, Damaged) and not problems(self.path):
            raise error
        self._set_aside()
        warnings.warn(
            f"the embedding cache in {str(self.folder)!r} was damaged ({error}); it was renamed to "
            "rows.damaged and replaced by an empty one, so texts are encoded again",
            stacklevel=2,
        )

    def _set_aside(self) -> None:
        """Rename the environment to `rows.damaged`, replacing an earlier one."""
        self.close()
        aside = self.folder / "rows.damaged"
        shutil.rmtree(aside, ignore_errors=True)
        if self.path.exists():
            self.path.rename(aside)

    def _file_lock(self) -> FileLock:
        """Return the lock under which the file is opened, renamed or removed."""
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / "store.lock")

    def _file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the data file; None if it does not exist."""
        try:
            stat = (self.path / "data.mdb").stat()
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    @contextmanager
    def _reraise_unusable(self) -> Iterator[None]:
        """Turn errors of the folder, the disk or LMDB into :class:`Unusable`."""
        try:
            yield
        except (OSError, lmdb.Error) as error:
            reason = getattr(error, "strerror", None) or error
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


def problems(path: Path) -> list[str]:
    """Check the file of an environment without LMDB; return the problems found."""
    try:
        return verify(str(path))
    except (VerifyError, FileNotFoundError) as error:
        return [str(error)]
