"""Write the data file of `isoadapt.datasets.load_general_sentences`.

``python -m tools.general_sentences`` draws definitions of WordNet from ``data/wordnet`` of the
folder of shared data, and writes them in the order in which they are drawn. Those that occur in a
text of the other folders, on which the benchmarks evaluate, or in the package are left out.
"""

import bz2
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random

from benchmarks._data import shared_folder

DATA_FILE = Path(__file__).parents[1] / "isoadapt" / "datasets" / "general_sentences.txt.bz2"
N_SENTENCES = 3000
_LENGTHS = range(5, 31)  # in words
_WORD = re.compile(r"[a-z0-9]+|\|")  # or the mark between two texts


def draw_sentences(definitions: Iterable[str], evaluated: Iterable[str]) -> list[str]:
    """Draw definitions of suitable length, no two of them alike, which no evaluated text holds."""
    taken, seen = _words("|".join(evaluated)), set()
    pool = [each for each in definitions if each.isascii() and each.isprintable()]
    pool = [each for each in pool if len(each.split()) in _LENGTHS]
    Random(0).shuffle(pool)
    drawn = []
    for each in pool:
        words = _words(each)
        if len(drawn) < N_SENTENCES and words not in seen and words not in taken:
            seen.add(words)
            drawn.append(each)
    return drawn


def shared_texts(folder: Path) -> tuple[list[str], list[str]]:
    """Read the definitions, and the lines of all tables in a folder and of the package."""
    tables = [*sorted(folder.glob("*/*.tsv")), *sorted(DATA_FILE.parent.glob("*.tsv"))]
    lines = [line for table in tables for line in _lines(table)]
    return _lines(folder / "wordnet" / "definitions.txt"), lines


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def _words(text: str) -> str:
    """Return the words of a text without case and punctuation, with a space around each."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


if __name__ == "__main__":
    sentences = draw_sentences(*shared_texts(shared_folder() / "data"))
    DATA_FILE.write_bytes(bz2.compress("\n".join(sentences).encode()))
