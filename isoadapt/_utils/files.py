"""Atomic writing of files, and checks that a folder is writable."""

import glob
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from isoadapt._utils.exchange import try_lock


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file; on success, sync it and rename it to `target`.

    It is in a temporary folder beside `target` and has the same name. If the block fails or is
    interrupted, `target` is not changed and the temporary folder is removed; if the process is
    killed, the next call for this `target` removes it. OSError is raised if the folder of `target`
    is missing or not writable.
    """
    target = Path(target).absolute()
    with _scratch_folder(target) as scratch:
        mode = new_file_mode(scratch)
        temporary = scratch / target.name
        temporary.touch()
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode)  # whatever wrote it
        temporary.replace(target)


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder for `target`, locked to show that it is in use."""
    prefix = f".{target.name}.isoadapt-file-"
    with ExitStack() as stack:
        while True:
            directory = tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent)
            scratch = Path(stack.enter_context(directory))
            with suppress(FileNotFoundError):  # another process took it for a leftover
                state = stack.enter_context(try_lock(scratch))
                if state is not False and scratch.exists():
                    break
        for other in target.parent.glob(f"{glob.escape(prefix)}*"):
            with suppress(OSError), try_lock(other) as free:  # not readable, or just removed
                if free:
                    shutil.rmtree(other, ignore_errors=True)
        yield scratch


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
