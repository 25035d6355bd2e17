"""The code blocks of the site's pages and of the README."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.rst")
    if path.relative_to(ROOT / "docs").parts[0] not in {"_build", "api", "gallery", "generated"}
)
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
_DIRECTIVE = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:[ ]{3}.*\n|\n)+)", re.M)


class Block(NamedTuple):
    language: str
    code: str


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path):
    text = path.read_text("utf-8")
    found = (_FENCED if path.suffix == ".md" else _DIRECTIVE).findall(text + "\n")
    return [Block(language, textwrap.dedent(code)) for language, code in found]


def of_language(path, language):
    return [block.code for block in blocks(path) if block.language == language]


def shell_lines(path):
    lines = "".join(of_language(path, "sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]
