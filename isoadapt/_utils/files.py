"""Files that are either whole or absent."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `target`; on success sync it and rename it to `target`.

    An error or an interrupt inside the block leaves `target` as it was and removes the temporary
    file.

    Parameters
    ----------
    target : str or path-like
        The file to write.

    Yields
    ------
    Path
        Where to write. Its suffix is that of `target`.

    Raises
    ------
    OSError
        If the folder does not exist or cannot be written to.
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
    """Give a file the permissions of any new one, whatever wrote it.

    Parameters
    ----------
    file : Path
        The file.
    """
    umask = os.umask(0)
    os.umask(umask)
    file.chmod(0o666 & ~umask)


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """Make `folder` if need be and check that files can be written into it.

    Parameters
    ----------
    folder : str or path-like
        The folder.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    OSError
        If it is not a folder, cannot be made or cannot be written to.
    """
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
