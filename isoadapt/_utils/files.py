"""Writing of files and of folders as a whole; which folders may be replaced."""

import glob
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isoadapt._utils.messages import warn

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
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{shown} is a file; choose another name")
    if target in (Path.cwd(), *Path.cwd().parents, Path.home()) or os.path.ismount(target):
        raise FileExistsError(
            f"{shown} is a folder that is in use, or a mount point, which cannot be replaced; "
            "choose a new one inside it"
        )
    read = None if model is None else Path(model).expanduser()
    if read and read.is_dir() and target.is_dir() and target.samefile(read):
        raise FileExistsError(f"{shown} is the model that is read, which is kept; choose another")
    _check_replaceable(target, overwrite, content, shown)
    check_writable(target.parent)
    for left in target.parent.glob(f"{glob.escape(target.name)}.isoadapt-old-*"):
        warn(
            f"{str(left)!r} holds all or part of the former content of {shown}, which another call "
            "was replacing when it ended: delete it, or rename it if you need it"
        )
    return target


@contextmanager
def atomic_folder(target: Path, overwrite: bool, content: str) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; on success, put it in the place of `target`.

    This takes two renames: the former folder moves aside, and the new one to its place. Then the
    former one is removed. If the block fails or is interrupted, `target` is not changed and the
    temporary folder is removed. If the process is killed between the renames, the former folder
    stays beside, where the next :func:`check_output_folder` finds it. FileExistsError is raised if
    `target` may not be replaced, also if that changed during the block.
    """
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
    for file in folder.rglob("*"):
        if file.is_file():
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
    if not names:
        return
    if not overwrite:
        raise FileExistsError(
            f"{shown} exists and is not empty; choose another folder, or allow {content} in it to "
            "be replaced (overwrite=True, --overwrite)"
        )
    own = _listed(folder, content)
    why = f"it holds files that are not part of {content} that was saved there"
    if own is None:
        own, why = set(), f"it has no file {MARKER}, by which isoadapt marks {content}, but others"
    foreign = sorted(names - own)
    if foreign:
        examples = ", ".join(map(repr, foreign[:3])) + (", …" if len(foreign) > 3 else "")
        raise FileExistsError(
            f"{shown} is not replaced: {why} ({examples}); move or delete them, or choose "
            "another folder"
        )


def _listed(folder: Path, content: str) -> set[str] | None:
    """Return the names that the marker of a folder lists; None if it is not marked as `content`."""
    try:
        title, *names = (folder / MARKER).read_text("utf-8").splitlines()
    except (OSError, ValueError):  # there is no marker, or another file with its name
        return None
    return {*names, MARKER} if title.startswith(_TITLE.format(content)) else None
