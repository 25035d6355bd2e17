"""Folders that are either whole or absent, and that replace nothing but their own kind."""

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoadapt._utils.files import permit_as_new, writable_folder

LIST = "isoadapt.sha256"  # in a folder: its files, as sha256sum lists them


@dataclass(frozen=True)
class Content:
    """A kind of output folder: which files it holds, and which of them may be overwritten.

    A folder that :func:`atomic_folder` writes keeps a list of its files, in the format of
    sha256sum. Only files that are on the list, unchanged, may be replaced.

    Attributes
    ----------
    name : str
        What it is, with its article.
    unlisted : callable
        Takes a folder without a list and the names in it, and returns the names of the files that
        may be replaced.
    listed : bool
        Whether a list is kept.
    """

    name: str
    unlisted: Callable[[Path, Collection[str]], Collection[str]] = lambda folder, names: ()
    listed: bool = True

    def has_list(self, folder: Path) -> bool:
        """Whether a folder holds the list of the files of such content.

        Parameters
        ----------
        folder : Path
            An existing folder.

        Returns
        -------
        bool
            False also where the list is damaged or is that of other content.
        """
        return self.listed and self._read_list(folder) is not None

    def in_the_way(self, folder: Path) -> list[str]:
        """Name everything in a folder that may not be replaced.

        Parameters
        ----------
        folder : Path
            An existing folder.

        Returns
        -------
        list of str
            Names relative to the folder, sorted; what is odd about one stands behind it.
        """
        names = _entries(folder)
        digests = self._read_list(folder) if self.listed else None
        if digests is None:
            return sorted(names.keys() - self.unlisted(folder, names))
        found = []
        for name in sorted(names.keys() - {LIST}):
            if name not in digests:
                found.append(name)
            elif _digest(folder / name) != digests[name]:
                found.append(f"{name} (changed)")
        return found

    def write_list(self, folder: Path) -> None:
        """Write the list of the files in a folder into it.

        Parameters
        ----------
        folder : Path
            The folder.
        """
        if self.listed:
            names = sorted(name for name in _entries(folder) if (folder / name).is_file())
            lines = [f"{_digest(folder / name)}  {name}" for name in names]
            title = f"{self._title()}; it is replaced only while these files are all that is here"
            (folder / LIST).write_text("\n".join([title, *lines, ""]), "utf-8")

    def _title(self) -> str:
        return f"# {self.name}, written by isoadapt"

    def _read_list(self, folder: Path) -> dict[str, str] | None:
        """Digests by name, or None if no list of such content is there."""
        if (folder / LIST).is_symlink() or not (folder / LIST).is_file():
            return None
        title, *lines = (folder / LIST).read_text("utf-8", "replace").split("\n")
        pairs = (line.partition("  ") for line in lines)
        ours = title.startswith(self._title())
        return {name: digest for digest, _, name in pairs} if ours else None


def _entries(folder: Path) -> dict[str, tuple[int, ...]]:
    """List everything below a folder but folders that are not empty; links are not followed.

    Mode, inode, size and time of change by name; a remark stands behind the name of whatever is
    not an ordinary file.
    """
    found: dict[str, tuple[int, ...]] = {}
    for place, folders, files in os.walk(folder, onerror=_raise):
        closed = [name for name in folders if _kept_closed(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in closed]
        paths = [os.path.join(place, name) for name in (*files, *closed)]
        if not folders and not paths and place != os.fspath(folder):
            paths = [place]
        for path in paths:
            state = os.lstat(path)
            name = os.path.relpath(path, folder).replace(os.sep, "/") + _remark(path, state.st_mode)
            found[name] = (state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def _raise(error: OSError) -> None:
    raise error


def _kept_closed(folder: str) -> bool:
    """Whether what is in a folder lies elsewhere."""
    return os.path.islink(folder) or os.path.ismount(folder)


def _remark(path: str, mode: int) -> str:
    """What is odd about a path."""
    if stat.S_ISDIR(mode):
        return " (a mount point)" if os.path.ismount(path) else "/"
    if stat.S_ISLNK(mode):
        return " (a link)"
    return "" if stat.S_ISREG(mode) else " (not an ordinary file)"


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _saved_by_transformers(folder: Path, names: Collection[str]) -> Collection[str]:
    """Names of a checkpoint's files in a folder that save_pretrained wrote; else none."""
    config, modules = (_read_json(folder / name) for name in ("config.json", "modules.json"))
    weights = {"model.safetensors", "model.safetensors.index.json"}
    if (
        not isinstance(config, dict)
        or "transformers_version" not in config
        or not weights & {*names}
    ):
        return ()
    modules = modules if isinstance(modules, list) else []
    paths = [str(module.get("path")) for module in modules if isinstance(module, dict)]
    places = [path for path in paths if re.fullmatch(r"\d+_\w+", path)]
    inner = {
        f"{place}/{file}" for place in places for file in ("", "config.json", "model.safetensors")
    }
    return {name for name in names if name in inner or _SAVED.fullmatch(name)}


def _read_json(file: Path) -> Any:
    """What a file of JSON holds; None if it is missing or damaged."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


_SAVED = re.compile(  # by models, by tokenizers, by sentence-transformers
    r"(config|generation_config|model\.safetensors\.index)\.json"
    r"|model(-\d{5}-of-\d{5})?\.safetensors"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template)\.json"
    r"|(vocab|merges|dict)\.txt|chat_template\.jinja|bpe\.codes|prophetnet\.tokenizer"
    r"|(entity_vocab|word_shape|word_pronunciation|normalizer)\.json"
    r"|(spiece|sentencepiece|sentencepiece\.bpe|tokenizer|spm|spm_char)\.model"
    r"|(modules|sentence_bert_config|config_sentence_transformers)\.json"
)
CHECKPOINT = Content("a checkpoint", _saved_by_transformers)


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
        Whether a folder with such content in it, unchanged, and nothing else may be replaced.
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
        If `folder` is a file, a folder in use or a mount point, holds files and `overwrite` is
        false, or holds files that may not be replaced, which are named.
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
    shown = f"{name}={str(folder)!r}"
    if os.path.ismount(target):
        raise FileExistsError(
            f"{shown} is a mount point, which cannot be replaced; name a new one inside it"
        )
    filled = target.is_dir() and any(target.iterdir())
    if filled and not overwrite:
        raise FileExistsError(
            f"{shown} exists and is not empty; choose another folder, or "
            f"allow {content.name} in it to be replaced (overwrite=True, --overwrite)"
        )
    if filled and Path(folder).expanduser().is_symlink():
        raise FileExistsError(
            f"{shown} is a link to {str(target)!r}, and links are not followed to replace "
            "anything; name that folder itself"
        )
    if filled:
        _check_replaceable(target, content, shown)
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
    with no_empty_leftovers(Path(folder).expanduser().resolve().parent):
        yield check_output_folder(folder, overwrite, name=name)


@contextmanager
def no_empty_leftovers(folder: Path) -> Iterator[None]:
    """Remove `folder` and the folders around it after an error, if the block made them in vain.

    Parameters
    ----------
    folder : Path
        A folder that may be made in the block.

    Yields
    ------
    None
        Nothing.
    """
    folder = folder.resolve()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]  # innermost first
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):  # it was not made, or holds something by now
                each.rmdir()
        raise


def _check_replaceable(folder: Path, content: Content, shown: str) -> None:
    found = content.in_the_way(folder)
    if found:
        names = ", ".join(map(repr, found[:3])) + (", …" if len(found) > 3 else "")
        why = f"are not part of {content.name} that was saved there, or were changed since"
        if content.listed and not content.has_list(folder):
            why = (
                f"cannot be told from other files, because the folder has no list of the files of "
                f"{content.name} ({LIST})"
            )
        raise FileExistsError(
            f"{shown} is not replaced: {len(found)} of the files in it {why} ({names}); move or "
            "delete them, or choose another folder"
        )


@contextmanager
def atomic_folder(target: Path, overwrite: bool, content: Content) -> Iterator[Path]:
    """Give a temporary folder beside `target`; on success sync it and put it in target's place.

    An error or an interrupt inside the block leaves `target` as it was and removes the temporary
    folder.

    Parameters
    ----------
    target : Path
        The folder to make or to replace.
    overwrite : bool
        Whether such content in `target` may be replaced.
    content : Content
        What is written.

    Yields
    ------
    Path
        Where to write.

    Raises
    ------
    FileExistsError
        If `target` holds files that may not be replaced, which may have appeared in the meantime.
    """
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        written = Path(scratch) / "new"
        written.mkdir()
        yield written
        content.write_list(written)
        for file in written.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
                permit_as_new(file)
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise _taken(target)
        before = _entries(target) if target.exists() else {}
        if before and not overwrite:
            raise _taken(target)
        if before:
            _check_replaceable(target, content, repr(str(target)))
        _put_in_place(written, target, Path(scratch) / "old", before)


def _taken(target: Path) -> FileExistsError:
    return FileExistsError(
        f"{str(target)!r} was filled or changed in the meantime and is kept; choose another folder"
    )


def _put_in_place(
    written: Path, target: Path, aside: Path, before: dict[str, tuple[int, ...]]
) -> None:
    """Rename a folder to `target`; on an error, or other content than before, put that back."""
    try:
        if target.exists():
            target.rename(aside)
            if _entries(aside) != before:
                raise _taken(target)
        written.rename(target)
    except BaseException:
        if aside.exists():
            _put_back(aside, target)
        raise


def _put_back(aside: Path, target: Path) -> None:
    """Rename a folder to `target`, or where that is taken by now, to a new name beside it."""
    try:
        aside.rename(target)
    except OSError as error:
        kept = Path(tempfile.mkdtemp(prefix=f"{target.name}-kept-", dir=target.parent)) / "old"
        aside.rename(kept)
        raise OSError(
            f"{str(target)!r} was filled in the meantime; what was in it before is kept as "
            f"{str(kept)!r}"
        ) from error
