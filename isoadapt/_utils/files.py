"""Atomic writing of files, and checks that a folder is writable."""

import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success, sync it and rename it to `target`.

    The suffix is that of `target`. If the block fails or is interrupted, `target` is not changed
    and the temporary file is removed. OSError is raised if the folder is missing or not writable.
    """
    target = Path(target)
    mode = new_file_mode(target.parent)
    handle, name = tempfile.mkstemp(
        prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode)  # whatever wrote it
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def new_file_mode(folder: Path) -> int:
    """Return the permissions of a file that is created in a folder, without changing the umask."""
    probe = folder / f".{uuid.uuid4().hex}"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
        probe.unlink()


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """Create `folder` if it is missing; raise OSError unless files can be written into it."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise OSError(
            f"output folder {str(folder)!r} cannot be written to ({error.strerror or error}); "
            "choose another folder"
        ) from error
