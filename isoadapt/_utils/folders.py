"""Atomic writing of folders, which replaces only folders with the same kind of content."""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoadapt._utils.exchange import exchange, try_lock, while_locked
from isoadapt._utils.files import new_file_mode, writable_folder

LIST = "isoadapt.sha256"  # file with the list of the files in its folder


@dataclass(frozen=True)
class Content:
    """A kind of output folder: which files it holds, and which of them may be overwritten.

    A folder written by :func:`atomic_folder` contains a list of its files, in the format of
    sha256sum. Only files on the list that have not changed may be replaced.
    """

    name: str  # with its article
    # Takes a folder without a list and the names in it; returns the names that may be replaced.
    unlisted: Callable[[Path, Collection[str]], Collection[str]] = lambda folder, names: ()
    listed: bool = True  # whether a list is kept

    def has_list(self, folder: Path) -> bool:
        """Whether an existing folder holds an undamaged list of files of such content."""
        return self.listed and self._read_list(folder) is not None

    def not_replaceable(self, folder: Path) -> list[str]:
        """Return sorted relative names, with remarks, of everything that may not be replaced."""
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
        """Write the list of the files in a folder into it."""
        if self.listed:
            names = sorted(name for name in _entries(folder) if (folder / name).is_file())
            lines = [f"{_digest(folder / name)}  {name}" for name in names]
            title = f"{self._title()}; it is replaced only if it holds these files and nothing else"
            (folder / LIST).write_text("\n".join([title, *lines, ""]), "utf-8")

    def _title(self) -> str:
        return f"# {self.name}, written by isoadapt"

    def _read_list(self, folder: Path) -> dict[str, str] | None:
        """Return digests by name; None if there is no list of such content."""
        if (folder / LIST).is_symlink() or not (folder / LIST).is_file():
            return None
        title, *lines = (folder / LIST).read_text("utf-8", "replace").split("\n")
        pairs = (line.partition("  ") for line in lines)
        ours = title.startswith(self._title())
        return {name: digest for digest, _, name in pairs} if ours else None


def _entries(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return mode, inode, size and time of change of everything below a folder, by relative name.

    Folders are listed only if they are empty. Links are not followed. A remark is appended to the
    name of anything that is not an ordinary file.
    """
    found: dict[str, tuple[int, ...]] = {}
    for place, folders, files in os.walk(folder, onerror=_raise):
        closed = [name for name in folders if _lies_elsewhere(os.path.join(place, name))]
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


def _lies_elsewhere(folder: str) -> bool:
    """Whether a folder is a link or a mount point, so that its contents are elsewhere."""
    return os.path.islink(folder) or os.path.ismount(folder)


def _remark(path: str, mode: int) -> str:
    """Return a suffix for a path that is not an ordinary file."""
    if stat.S_ISDIR(mode):
        return " (a mount point)" if os.path.ismount(path) else "/"
    if stat.S_ISLNK(mode):
        return " (a link)"
    return "" if stat.S_ISREG(mode) else " (not an ordinary file)"


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _saved_by_transformers(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return names of files that save_pretrained wrote; empty if the folder is not a checkpoint."""
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
    """Return the content of a JSON file; None if it is missing or damaged."""
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
_REPLACING = "replacing"  # file in a temporary folder while the folder beside it is replaced
CHECKPOINT = Content("a checkpoint", _saved_by_transformers)


def check_output_folder(
    folder: str | os.PathLike[str],
    overwrite: bool,
    *,
    content: Content = CHECKPOINT,
    name: str = "output_folder",
) -> Path:
    """Check, before long computations, that a result can be written to `folder`; return its path.

    Its parent is created if it is missing. FileExistsError is raised if `folder` is a file, a
    folder in use or a mount point, if it is not empty and `overwrite` is false, or if it holds
    files that may not be replaced, which the message names. OSError is raised if the parent is not
    writable. `name` is that of the parameter in messages.
    """
    target = Path(folder).expanduser().resolve()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{name}={str(folder)!r} is a file; choose another name")
    if target == Path.cwd() or target in Path.cwd().parents or target == Path.home():
        raise FileExistsError(
            f"{name}={str(folder)!r} is a folder that is in use; choose a new one inside it"
        )
    shown = f"{name}={str(folder)!r}"
    if os.path.ismount(target):
        raise FileExistsError(
            f"{shown} is a mount point, which cannot be replaced; choose a new one inside it"
        )
    filled = target.is_dir() and any(target.iterdir())
    if filled and not overwrite:
        raise FileExistsError(
            f"{shown} exists and is not empty; choose another folder, or "
            f"allow {content.name} in it to be replaced (overwrite=True, --overwrite)"
        )
    if filled and Path(folder).expanduser().is_symlink():
        raise FileExistsError(
            f"{shown} is a link to {str(target)!r}, and nothing is replaced through a link; "
            "pass that folder itself"
        )
    if filled:
        _check_replaceable(target, content, shown)
    writable_folder(target.parent)
    return target


def check_kept(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    source_name: str,
    target_name: str,
) -> None:
    """Raise FileExistsError if the folder to write is the one that is read."""
    read, written = Path(source).expanduser(), Path(target).expanduser()
    if read.is_dir() and written.is_dir() and written.samefile(read):
        raise FileExistsError(
            f"{target_name}={str(target)!r} is {source_name}, which is kept; choose another folder"
        )


@contextmanager
def reserved_folder(
    folder: str | os.PathLike[str], overwrite: bool, *, name: str = "output_folder"
) -> Iterator[Path]:
    """Check, before long computations, that a checkpoint can be written to `folder`.

    This is :func:`check_output_folder` as a context. If the block fails or is interrupted, the
    parent folders that were created for it are removed.
    """
    with no_empty_leftovers(Path(folder).expanduser().resolve().parent):
        yield check_output_folder(folder, overwrite, name=name)


@contextmanager
def no_empty_leftovers(folder: Path) -> Iterator[None]:
    """If the block fails, remove `folder` and its parents that the block created and left empty."""
    folder = folder.resolve()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]  # innermost first
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):  # it was not created, or is not empty
                each.rmdir()
        raise


def _check_replaceable(folder: Path, content: Content, shown: str) -> None:
    found = content.not_replaceable(folder)
    if found:
        names = ", ".join(map(repr, found[:3])) + (", …" if len(found) > 3 else "")
        why = f"are not part of {content.name} that was saved there, or were changed since"
        if content.listed and not content.has_list(folder):
            why = (
                f"cannot be distinguished from other files, because the folder has no list of the "
                f"files of {content.name} ({LIST})"
            )
        raise FileExistsError(
            f"{shown} is not replaced: {len(found)} of the files in it {why} ({names}); move or "
            "delete them, or choose another folder"
        )


@contextmanager
def atomic_folder(target: Path, overwrite: bool, content: Content) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; on success, sync it and move it to `target`.

    If the block fails or is interrupted, `target` is not changed and the temporary folder is
    removed; if the process is killed, the next call for this `target` removes it. FileExistsError
    is raised if `target` holds files that may not be replaced, also if they appeared during the
    block. On Linux there is a folder at `target` at every moment. Several processes may write to
    the same `target`; the last one to finish replaces what the others wrote.
    """
    with ExitStack() as stack:

        def make_scratch(has_locks: bool) -> Path:
            if has_locks:
                _remove_leftovers(target, content)
            prefix = _prefix(target)
            directory = tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent)
            scratch = Path(stack.enter_context(directory))
            stack.enter_context(try_lock(scratch))  # shows that it is in use
            return scratch

        def put_in_place(_: bool) -> None:
            before = _check_target(target, overwrite, content)
            _put_in_place(written, target, scratch, before)

        scratch = while_locked(target.parent, make_scratch)
        written = scratch / "new"
        written.mkdir()
        yield written
        content.write_list(written)
        mode = new_file_mode(scratch)
        for file in written.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
                file.chmod(mode)
        while_locked(target.parent, put_in_place)


def _check_target(target: Path, overwrite: bool, content: Content) -> dict[str, tuple[int, ...]]:
    """Return the entries of the folder to be replaced; raise if it may not be replaced."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise _taken(target)
    before = _entries(target) if target.exists() else {}
    if before and not overwrite:
        raise _taken(target)
    if before:
        _check_replaceable(target, content, repr(str(target)))
    return before


def _taken(target: Path) -> FileExistsError:
    return FileExistsError(
        f"{str(target)!r} was created or changed in the meantime and is kept; choose another folder"
    )


def _put_in_place(
    written: Path, target: Path, scratch: Path, before: dict[str, tuple[int, ...]]
) -> None:
    """Move a folder to `target`; restore that on an error, or if it differs from `before`."""
    if not before:
        try:
            written.rename(target)  # also in place of an empty folder
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _taken(target) from error
            raise
        return
    (scratch / _REPLACING).touch()
    if not _exchanged(written, target, before):
        _rename_twice(written, target, scratch / "old", before)
    (scratch / _REPLACING).unlink()


def _exchanged(written: Path, target: Path, before: dict[str, tuple[int, ...]]) -> bool:
    """Exchange two folders and check the former `target`; return False if the system cannot."""
    new, inode = _entries(written), written.stat().st_ino
    try:
        if not exchange(written, target):
            return False
        if _entries(written) != before:
            raise _taken(target)
    except BaseException:
        if target.stat().st_ino == inode:
            exchange(written, target)
            if _entries(written) != new:
                raise _kept(written, target) from None
        raise
    return True


def _rename_twice(
    written: Path, target: Path, aside: Path, before: dict[str, tuple[int, ...]]
) -> None:
    """Replace `target` on systems that cannot exchange folders."""
    try:
        target.rename(aside)
        if _entries(aside) != before:
            raise _taken(target)
        written.rename(target)
    except BaseException:
        if aside.exists():
            try:
                aside.rename(target)
            except OSError as error:
                raise _kept(aside, target) from error
        raise


def _kept(folder: Path, target: Path) -> OSError:
    """Rename a folder to a new name beside `target`, and return an error that names it."""
    kept = Path(tempfile.mkdtemp(prefix=f"{target.name}-kept-", dir=target.parent)) / "old"
    folder.rename(kept)
    return OSError(
        f"{str(target)!r} was created or changed in the meantime; its former content is kept as "
        f"{str(kept)!r}"
    )


def _prefix(target: Path) -> str:
    """Return the beginning of the names of temporary folders for `target`."""
    return f".{target.name}.isoadapt-"


def _remove_leftovers(target: Path, content: Content) -> None:
    """Remove the temporary folders of killed processes, under the lock of the parent folder.

    A folder that a process was killed while replacing is put back, or kept if it holds files that
    may not be replaced.
    """
    for scratch in target.parent.glob(f"{glob.escape(_prefix(target))}*"):
        with suppress(OSError), try_lock(scratch) as free:  # not a folder, or not readable
            if not free:
                continue
            replacing = (scratch / _REPLACING).exists()
            for folder in (scratch / "old", scratch / "new"):
                if folder.name == "old" and folder.exists() and not target.exists():
                    folder.rename(target)
                if replacing and folder.exists() and content.not_replaceable(folder):
                    break
            else:
                shutil.rmtree(scratch, ignore_errors=True)
