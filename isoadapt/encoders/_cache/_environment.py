"""An LMDB environment that threads and processes share and that mends itself.

A process that is killed leaves nothing half done, for every operation is one transaction. Data
reach the disk before the page that names them, so nor does a crash of the whole machine.
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

_FIRST_MAP = 2**30  # bytes of address space, not of the disk; doubled when full
_READERS = 1024


class Damaged(Exception):
    """What was read is not what was written."""


class Unusable(OSError):
    """The folder or the disk is at fault."""


class Environment:
    """The environment `rows.lmdb` in a folder, opened on first use.

    If it is damaged, it is renamed to `rows.damaged` with a warning, and an empty one takes its
    place. LMDB checks much of what it reads, but some damage would end the process. So a file is
    opened unchecked only if it bears the time of the last transaction, which is noted as the time
    of the file `sealed` beside it; else :func:`lmdb.verify.verify` walks it first.

    Parameters
    ----------
    folder : Path
        Where it lies, beside the folder `locks`.
    tables : tuple of str
        Names of its tables.
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
        """Run an operation in a transaction, again if the environment had to be mended.

        Parameters
        ----------
        operation : callable
            Given the transaction and the tables by name. It may be called more than once. It
            raises :class:`Damaged` if it finds damage. A reader gets memoryviews.
        write : bool
            Whether it writes. There is one writer at a time among all processes.

        Returns
        -------
        object
            What the operation returns.

        Raises
        ------
        Unusable
            If the folder or the disk is at fault.
        """
        with self.lock, self._explained():  # so no transaction is open when the map is changed
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
                    self.mend(error)

    def mend(self, error: Exception) -> None:
        """Set the environment aside if it is damaged; raise `error` if it is not.

        Parameters
        ----------
        error : Exception
            What happened. LMDB's errors have other reasons too.
        """
        found = self._file
        self.close()
        with self._alone():
            if found == self._file_id():  # else another process was first
                self._replace(error)

    def remove(self) -> None:
        """Delete everything, also what was set aside."""
        with self.lock, self._explained(), self._alone():
            self._set_aside()
            shutil.rmtree(self.folder / "rows.damaged", ignore_errors=True)

    def close(self) -> None:
        """Close the environment; the next operation opens it again."""
        with self.lock:
            if self._environment is not None:
                self._environment.close()
            self._environment = self._file = None

    def _open(self) -> Any:
        if self._environment is None or self._file != self._file_id():
            self.close()
            with self._alone():
                while self._environment is None:
                    try:
                        self._load()
                    except lmdb.MapResizedError:
                        pass  # another process made the file larger just now
                    except lmdb.Error as error:
                        self._replace(error)
        return self._environment

    def _load(self) -> None:
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
            with environment.begin(write=True):  # so nobody writes meanwhile
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
        data, seal = (self.path / name for name in ("data.mdb", "sealed"))
        pages = environment.info()["last_pgno"] + 1
        long_enough = data.stat().st_size >= pages * environment.stat()["psize"]
        return long_enough and seal.exists() and seal.stat().st_mtime_ns == data.stat().st_mtime_ns

    def _seal(self) -> None:
        with suppress(FileNotFoundError):  # renamed by another process
            changed = (self.path / "data.mdb").stat().st_mtime_ns
            os.utime(self.path / "sealed", ns=(changed, changed))

    def _replace(self, error: Exception) -> None:
        if not isinstance(error, Damaged) and not problems(self.path):
            raise error
        self._set_aside()
        warnings.warn(
            f"the embedding cache in {str(self.folder)!r} was damaged ({error}); it was renamed to "
            "rows.damaged and begun anew, so texts are encoded again",
            stacklevel=2,
        )

    def _set_aside(self) -> None:
        self.close()
        aside = self.folder / "rows.damaged"
        shutil.rmtree(aside, ignore_errors=True)
        if self.path.exists():
            self.path.rename(aside)

    def _alone(self) -> FileLock:
        """Give the lock under which the file is opened, renamed or removed."""
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / "store.lock")

    def _file_id(self) -> tuple[int, int] | None:
        try:
            stat = (self.path / "data.mdb").stat()
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    @contextmanager
    def _explained(self) -> Iterator[None]:
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
    """Give the one environment that this process has in a folder; nothing is opened yet.

    Parameters
    ----------
    folder : str or path-like
        The folder.
    tables : tuple of str
        Names of the tables.

    Returns
    -------
    Environment
        The same for every name of the folder.
    """
    path = Path(folder).expanduser().resolve()
    with _ENVIRONMENTS_LOCK:
        return _ENVIRONMENTS.setdefault(path, Environment(path, tables))


def _before_fork() -> None:
    """Close every environment: a child cannot use its parent's, nor open another beside it."""
    _ENVIRONMENTS_LOCK.acquire()
    for environment in _ENVIRONMENTS.values():
        environment.lock.acquire()
        environment.close()


def _after_fork() -> None:
    for environment in _ENVIRONMENTS.values():
        environment.lock.release()
    _ENVIRONMENTS_LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


def problems(path: Path) -> list[str]:
    """Say what is wrong with an environment's file, without LMDB's help.

    Parameters
    ----------
    path : Path
        The environment.

    Returns
    -------
    list of str
        Empty if the file is sound.
    """
    try:
        return verify(str(path))
    except (VerifyError, FileNotFoundError) as error:
        return [str(error)]
