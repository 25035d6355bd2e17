"""Folders that are either whole or absent."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isoadapt._files import writable_folder


def check_output_folder(folder: str | os.PathLike[str], overwrite: bool) -> Path:
    """Check, before long work, that a result can be put into `folder`.

    Parameters
    ----------
    folder : str or path-like
        The folder to be made; the folder it lies in is made if need be.
    overwrite : bool
        Whether a folder with files in it may be replaced.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        If `folder` is a file, or holds files and `overwrite` is false.
    OSError
        If the folder it lies in cannot be written to.
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"output_folder={str(folder)!r} is a file; choose another name")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise FileExistsError(
            f"output_folder={str(folder)!r} exists and is not empty; choose another folder, or "
            "pass overwrite=True to replace it"
        )
    writable_folder(target.parent)
    return target


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Give a temporary folder beside `target`; on success sync it and put it in target's place.

    An error or an interrupt inside the block leaves `target` as it was and removes the temporary
    folder.

    Parameters
    ----------
    target : Path
        The folder to make or to replace.

    Yields
    ------
    Path
        Where to write.
    """
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        written = Path(scratch) / "new"
        written.mkdir()
        yield written
        for file in written.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        old = Path(scratch) / "old"
        if target.exists():
            target.rename(old)
        try:
            written.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
