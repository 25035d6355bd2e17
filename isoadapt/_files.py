"""Files and folders that are either whole or absent."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
        _permit_as_new(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _permit_as_new(file: Path) -> None:
    """Give a file the permissions of any new one, whatever wrote it."""
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


@dataclass(frozen=True)
class Content:
    """What a folder that may be replaced holds.

    Attributes
    ----------
    name : str
        What it is, with its article.
    files : Pattern
        Names of all its files, those in folders with the folder's name.
    needed : tuple of str
        Files that it cannot be without.
    """

    name: str
    files: re.Pattern[str]
    needed: tuple[str, ...] = ("config.json",)

    def foreign(self, folder: Path) -> list[str]:
        """Give what in a folder is something else.

        Parameters
        ----------
        folder : Path
            A folder that is there.

        Returns
        -------
        list of str
            Names, sorted.
        """
        paths = [
            path
            for path in folder.rglob("*")
            if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
        ]
        names = [path.relative_to(folder).as_posix() for path in paths]
        return sorted(name for name in names if not self.files.fullmatch(name))


CHECKPOINT = Content(
    "a checkpoint",
    re.compile(
        r"model.*\.safetensors(\.index\.json)?|(added_tokens|config|generation_config|merges"
        r"|special_tokens_map|tokenizer|tokenizer_config|vocab)\.(json|txt)|[^/]*\.model"
    ),
)


def check_output_folder(
    folder: str | os.PathLike[str],
    overwrite: bool,
    *,
    content: Content = CHECKPOINT,
    name: str = "output_folder",
) -> Path:
    """Check, before long work, that a result can be put into `folder`.

    Parameters
    ----------
    folder : str or path-like
        The folder to be made; the folder it lies in is made if need be.
    overwrite : bool
        Whether a folder with such content in it, and nothing else, may be replaced.
    content : Content
        What is to be put there.
    name : str
        Name of the parameter, for messages.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        If `folder` is a file or a folder in use, holds files and `overwrite` is false, or holds
        other files than such content.
    OSError
        If the folder it lies in cannot be written to.
    """
    target = Path(folder).expanduser().resolve()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{name}={str(folder)!r} is a file; choose another name")
    if target == Path.cwd() or target in Path.cwd().parents or target == Path.home():
        raise FileExistsError(
            f"{name}={str(folder)!r} is a folder that is in use; name a new one inside it"
        )
    filled = target.is_dir() and any(target.iterdir())
    if filled and not overwrite:
        raise FileExistsError(
            f"{name}={str(folder)!r} exists and is not empty; choose another folder, or "
            f"allow {content.name} in it to be replaced (overwrite=True, --overwrite)"
        )
    if filled:
        _check_replaceable(target, content, f"{name}={str(folder)!r}")
    writable_folder(target.parent)
    return target


@contextmanager
def reserved_folder(
    folder: str | os.PathLike[str], overwrite: bool, *, name: str = "output_folder"
) -> Iterator[Path]:
    """Check, before long work, that a checkpoint can be put into `folder`.

    An error or an interrupt inside the block removes the folders around it that were made for it.

    Parameters
    ----------
    folder : str or path-like
        As for :func:`check_output_folder`.
    overwrite : bool
        As there.
    name : str
        As there.

    Yields
    ------
    Path
        The folder.

    Raises
    ------
    OSError
        As there.
    """
    parents = Path(folder).expanduser().resolve().parents
    missing = [parent for parent in parents if not parent.exists()]  # innermost first
    try:
        yield check_output_folder(folder, overwrite, name=name)
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # it was not made, or holds something by now
                parent.rmdir()
        raise


def _check_replaceable(folder: Path, content: Content, shown: str) -> None:
    missing = [file for file in content.needed if not (folder / file).is_file()]
    foreign = content.foreign(folder)[:3]
    if missing or foreign:
        what = (
            f"holds more than {content.name} ({foreign})"
            if foreign
            else (f"is not {content.name} (it has no {missing[0]})")
        )
        raise FileExistsError(f"{shown} {what}, so it is not replaced; choose another")


@contextmanager
def atomic_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """Give a temporary folder beside `target`; on success sync it and put it in target's place.

    An error or an interrupt inside the block leaves `target` as it was and removes the temporary
    folder.

    Parameters
    ----------
    target : Path
        The folder to make or to replace.
    overwrite : bool
        Whether files may be replaced, also those that appear in the meantime.

    Yields
    ------
    Path
        Where to write.

    Raises
    ------
    FileExistsError
        If files have appeared in `target` and may not be replaced.
    """
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        written = Path(scratch) / "new"
        written.mkdir()
        yield written
        for file in written.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
                _permit_as_new(file)
        if target.is_dir() and not overwrite:
            try:
                target.rmdir()  # an empty one
            except OSError as error:
                raise FileExistsError(
                    f"{str(target)!r} was filled in the meantime and is kept; choose another folder"
                ) from error
        _put_in_place(written, target, aside=Path(scratch) / "old")


def _put_in_place(written: Path, target: Path, aside: Path) -> None:
    """Rename a folder to `target`; on an error what was there is put back."""
    try:
        if target.exists():
            target.rename(aside)
        written.rename(target)
    except BaseException:
        if aside.exists():
            aside.rename(target)
        raise
