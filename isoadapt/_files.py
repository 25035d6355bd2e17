"""Files and folders that are either whole or absent."""

import os
import re
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
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


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


_CHECKPOINT_FILES = re.compile(
    r"model.*\.safetensors(\.index\.json)?|(added_tokens|config|generation_config|merges"
    r"|special_tokens_map|tokenizer|tokenizer_config|vocab)\.(json|txt)|.*\.model"
)


def check_output_folder(folder: str | os.PathLike[str], overwrite: bool) -> Path:
    """Check, before long work, that a result can be put into `folder`.

    Parameters
    ----------
    folder : str or path-like
        The folder to be made; the folder it lies in is made if need be.
    overwrite : bool
        Whether a folder with a checkpoint in it, and nothing else, may be replaced.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        If `folder` is a file or a folder in use, holds files and `overwrite` is false, or holds
        files that are not a checkpoint's.
    OSError
        If the folder it lies in cannot be written to.
    """
    target = Path(folder).expanduser().resolve()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"output_folder={str(folder)!r} is a file; choose another name")
    if target == Path.cwd() or target in Path.cwd().parents or target == Path.home():
        raise FileExistsError(
            f"output_folder={str(folder)!r} is a folder that is in use; name a new one inside it"
        )
    content = list(target.iterdir()) if target.is_dir() else []
    if content and not overwrite:
        raise FileExistsError(
            f"output_folder={str(folder)!r} exists and is not empty; choose another folder, or "
            "pass overwrite=True to replace a checkpoint in it"
        )
    foreign = [path.name for path in content if not _CHECKPOINT_FILES.fullmatch(path.name)]
    if content and (foreign or not (target / "config.json").is_file()):
        raise FileExistsError(
            f"output_folder={str(folder)!r} holds more than a checkpoint "
            f"({sorted(foreign)[:3] or 'no config.json'}), so it is not replaced; choose another"
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
        try:
            if target.exists():
                target.rename(old)
            written.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
