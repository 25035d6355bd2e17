"""Draw the picture of the README and the home page: `python docs/picture.py`.

With the arguments CHECKPOINT, TRAIN and BASE, a classifier, a table of its training texts and its
base model, the neighbours are searched again and stored.
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

STATIC = Path(__file__).parent / "_static"
NEIGHBOURS = STATIC / "search.json"
PICTURES = {"search.svg": 2, "search-narrow.svg": 1}  # columns: for screens and for phones
QUERY = "He sold his car to pay for the operation."
SHOWN = 5
TEXTS = 500  # that the readout is fitted to
MARGIN, COLUMN, LINE = 20, 440, 26
STYLE = """
.ground { fill: white } .text { fill: #1f2933 } .quiet { fill: #616e7c } .bar { fill: #dde3ea }
.found { fill: #1b7f5c } .strong { font-weight: bold }
@media (prefers-color-scheme: dark) {
.ground { fill: #14181e } .text { fill: #e4e7eb } .quiet { fill: #9aa5b1 } .bar { fill: #323f4b }
.found { fill: #4cc79a }
}
"""


def search(checkpoint: str, train: str, base: str) -> dict[str, Any]:
    """Find the neighbours of `QUERY`, and how many queries find their paraphrase first."""
    from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder
    from isoadapt.datasets import load_similarity_pairs, load_table

    pairs = load_similarity_pairs()
    asked = np.flatnonzero(pairs.scores >= 4)
    texts = load_table(train)[0][:TEXTS]
    model = AdaptedEncoder(checkpoint, TeacherReadout(), teacher=base).fit(texts)
    found: dict[str, Any] = {"queries": len(asked), "documents": len(pairs.right)}
    ways = {"before": TransformerEncoder(checkpoint).transform, "after": model.transform}
    for name, embed in ways.items():
        left, right = (embed(texts).astype(np.float64) for texts in (pairs.left, pairs.right))
        left, right = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (left, right))
        cosines = left @ right.T
        row = cosines[pairs.left.index(QUERY)]
        nearest = np.argsort(-row)[:SHOWN]
        found[name] = {
            "first": int((cosines[asked].argmax(axis=1) == asked).sum()),
            "neighbours": [[pairs.right[i], round(float(row[i]), 2)] for i in nearest],
        }
    return found | {"answer": pairs.right[pairs.left.index(QUERY)]}


def picture(columns: int) -> str:
    """Return the SVG: neighbours of the query with their cosines, before and after."""
    found = json.loads(NEIGHBOURS.read_text("utf-8"))
    block = LINE * (SHOWN + 3)
    width, height = 2 * MARGIN + COLUMN * columns, 70 + block * (2 // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="13"><style>{STYLE}</style>',
        f'<rect width="{width}" height="{height}" rx="8" class="ground"/>',
        _text(MARGIN, 32, f"Query: “{QUERY}”", "text strong", 15),
        _text(MARGIN, 54, "Its paraphrase should come first. The numbers are cosines.", "quiet"),
    ]
    titles = {
        "before": "Before: the classifier’s vectors",
        "after": "After: TeacherReadout, in the same pass",
    }
    for i, (name, title) in enumerate(titles.items()):
        left, top = MARGIN + COLUMN * (i % columns), 92 + block * (i // columns)
        parts.append(_text(left, top, title, "text strong"))
        for k, (text, cosine) in enumerate(found[name]["neighbours"], 1):
            y, right = top + LINE * k, text == found["answer"]
            parts += [
                f'<rect x="{left}" y="{y - 14}" width="{36 * cosine:.1f}" height="20" rx="3" '
                f'class="{"found" if right else "bar"}" opacity="{0.35 if right else 1}"/>',
                _text(left + 4, y, f"{cosine:.2f}", "text"),
                _text(left + 44, y, text, "found strong" if right else "text", 12),
            ]
        missed = found["queries"] - found[name]["first"]
        counted = f"Paraphrase not first: {missed} of {found['queries']} queries"
        parts.append(_text(left, top + LINE * (SHOWN + 1), counted, "quiet"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: int, y: int, text: str, look: str, size: int = 13) -> str:
    return f'<text x="{x}" y="{y}" class="{look}" font-size="{size}">{escape(text)}</text>'


if __name__ == "__main__":
    if sys.argv[1:]:
        stored = json.dumps(search(*sys.argv[1:]), indent=1, ensure_ascii=False)
        NEIGHBOURS.write_text(f"{stored}\n", "utf-8")
    for name, columns in PICTURES.items():
        (STATIC / name).write_text(picture(columns), "utf-8")
