"""What the gallery runs on, and the thumbnails of examples that draw nothing."""

import ast
import re
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

CHECKPOINT = Path(__file__).parents[2] / "isoadapt-demo" / "checkpoint"
_PRINTED = re.compile(r"sphx-glr-script-out\n.*?code-block:: none\n\n(.*?)(?:\n\n\n|\Z)", re.S)
_LINES, _CHARACTERS = 9, 34  # of a thumbnail


def checkpoint_argument(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Pass each example the checkpoint that `make demo` leaves, wherever the example runs."""
    return [str(CHECKPOINT)]


def write_thumbnails(app: Sphinx) -> None:
    """Show what an example prints, or its code if it did not run, where it has no picture."""
    folder = Path(app.srcdir) / "gallery"
    for file in (folder / "images" / "thumb").glob("sphx_glr_*_thumb.svg"):
        name = file.stem.removeprefix("sphx_glr_").removesuffix("_thumb")
        printed = _PRINTED.findall((folder / f"{name}.rst").read_text("utf-8"))
        lines = "\n".join(printed).split("\n") if printed else code(folder / f"{name}.py")
        file.write_text(_thumbnail([line.strip() for line in lines if line.strip()]), "utf-8")


def code(path: Path) -> list[str]:
    """Return the lines of an example after its imports, without comments."""
    source = path.read_text("utf-8")
    body = ast.parse(source).body
    last = max(each.end_lineno for each in body if isinstance(each, ast.Import | ast.ImportFrom))
    lines = source.splitlines()[last:]
    return [line for line in lines if not line.startswith(("#", "checkpoint = "))]


def _thumbnail(lines: list[str]) -> str:
    texts = [
        f'<text x="18" y="{42 + 27 * row}">{escape(line[:_CHARACTERS])}</text>'
        for row, line in enumerate(lines[:_LINES])
    ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 280" width="400" height="280"'
    ground = '<rect width="400" height="280" fill="#f3f4f5"/>'
    font = 'font-family="monospace" font-size="18" fill="#1f2933"'
    return "\n".join([f"{head} {font}>", ground, *texts, "</svg>", ""])
