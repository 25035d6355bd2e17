"""Writing of files and of folders as a whole; which folders may be replaced."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isoadapt._utils.messages import listed

CHECKPOINT, ADAPTER = "a checkpoint", "an adapter"  # kinds of content
MARKER = "isoadapt.txt"  # file that lists what isoadapt wrote to its folder
_TITLE = "# {}, written by isoadapt"  # start of its first line, with the kind of content
TOKENIZER_FILES = re.compile(  # that save_pretrained writes
    r"(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template)\.json"
    r"|(vocab|merges|dict)\.txt|chat_template\.jinja|bpe\.codes|prophetnet\.tokenizer"
    r"|(entity_vocab|word_shape|word_pronunciation|normalizer)\.json"
    r"|(spiece|sentencepiece|sentencepiece\.bpe|tokenizer|spm|spm_char)\.model"
)


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `target` unless the block fails."""
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
    target = Path(os.path.realpath(folder))  # of a link, which may be missing
    existing = next(each for each in (target, *target.parents) if os.path.lexists(each))
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise OSError(
            f"folder {str(folder)!r} cannot be written to: {str(existing)!r} is a file or "
            "protected; choose another folder"
        )
    return folder


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """Create `folder`, or the target of a link, if it is missing; raise OSError as above."""
    folder = check_writable(folder)
    os.makedirs(os.path.realpath(folder), exist_ok=True)
    return folder


def check_output_folder(
    folder: str | os.PathLike[str],
    overwrite: bool,
    *,
    content: str = CHECKPOINT,
    name: str = "output_folder",
    model: str | os.PathLike[str] | None = None,
) -> Path:
    """Return the path of `folder`; raise OSError if a result must not be written to it."""
    target, shown = Path(folder).expanduser().resolve(), f"{name}={str(folder)!r}"
    wrong = ""
    if target.exists() and not target.is_dir():
        wrong = "a file"
    elif target in (Path.cwd(), *Path.cwd().parents, Path.home()) or os.path.ismount(target):
        wrong = "a folder that is in use, or a mount point, which cannot be replaced"
    elif model is not None and target.is_dir() and Path(model).expanduser().resolve() == target:
        wrong = "the model that is read, which is kept"
    if wrong:
        raise FileExistsError(f"{shown} is {wrong}; choose a new folder")
    _check_replaceable(target, overwrite, content, shown)
    check_writable(target.parent)
    return target


@contextmanager
def atomic_folder(target: Path, overwrite: bool, content: str) -> Iterator[Path]:
    """Yield a temporary folder that replaces `target` unless the block fails or is interrupted."""
    target.parent.mkdir(parents=True, exist_ok=True)
    ending = uuid.uuid4().hex[:8]
    new, old = (
        target.with_name(f"{target.name}.isoadapt-{age}-{ending}") for age in ("new", "old")
    )
    try:
        new.mkdir()
        yield new
        _finish(new, content)
        _check_replaceable(target, overwrite, content, repr(str(target)))
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _finish(folder: Path, content: str) -> None:
    """Write the marker of a folder, and all its files to the disk."""
    title = f"{_TITLE}; overwrite=True replaces this folder if it holds only these files:"
    marker = folder / MARKER
    marker.write_text("\n".join([title.format(content), *sorted(_names(folder)), ""]), "utf-8")
    mode = marker.stat().st_mode
    for file in filter(Path.is_file, folder.rglob("*")):
        sync(file, mode)


def _names(folder: Path) -> set[str]:
    """Return the relative names of all files, links and empty folders below a folder."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }


def _check_replaceable(folder: Path, overwrite: bool, content: str, shown: str) -> None:
    """Raise FileExistsError if a folder holds anything that may not be replaced."""
    names = _names(folder)
    if names and not overwrite:
        raise FileExistsError(
            f"{shown} exists and is not empty; choose another folder, or allow {content} in it to "
            "be replaced (overwrite=True, --overwrite)"
        )
    if foreign := sorted(names - _listed(folder, content)):
        raise FileExistsError(
            f"{shown} is not replaced, because it holds files that are not part of {content} that "
            f"isoadapt listed in {MARKER}: {listed(foreign, 3)}; move or delete them, or choose "
            "another folder"
        )


def _listed(folder: Path, content: str) -> set[str]:
    """Return the names that the marker of a folder lists, if it is marked as `content`."""
    try:
        title, *names = (folder / MARKER).read_text("utf-8").splitlines()
    except (OSError, ValueError):  # there is no marker, or another file with its name
        return set()
    return {*names, MARKER} if title.startswith(_TITLE.format(content)) else set()
