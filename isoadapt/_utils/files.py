"""Atomic writing of files, and checks that a folder is writable."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file beside `target`; on success, rename it to `target`.

    Its suffix is that of `target`. If the block fails or is interrupted, `target` is not changed
    and the temporary file is removed. A killed process leaves it, where it is never read. OSError
    is raised if the folder of `target` is missing or not writable.
    """
    target = Path(target).absolute()
    temporary = target.with_name(f".{target.stem}-{uuid.uuid4().hex[:8]}{target.suffix}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # of any new file, as the umask says
        yield temporary
        sync(temporary, mode)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def sync(file: Path, mode: int) -> None:
    """Write a file to the disk and set its mode, which some libraries restrict to the owner."""
    with file.open("rb") as written:
        os.fsync(written.fileno())
    file.chmod(mode)


def check_writable(folder: str | os.PathLike[str]) -> Path:
    """Raise OSError unless files can be written to `folder` or, if it is missing, its parent."""
    folder = Path(folder)
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return folder
    except OSError as error:
        raise OSError(
            f"output folder {str(folder)!r} cannot be written to ({error.strerror or error}); "
            "choose another folder"
        ) from error


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """Create `folder` if it is missing; raise OSError unless files can be written to it."""
    folder = check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
