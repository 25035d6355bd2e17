"""Atomic writing of files, and checks that a folder is writable."""

import os
import tempfile
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
    handle, name = tempfile.mkstemp(
        prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        permit_as_new(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def permit_as_new(file: Path) -> None:
    """Give a file the permissions of a newly created one, whatever wrote it."""
    umask = os.umask(0)
    os.umask(umask)
    file.chmod(0o666 & ~umask)


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
