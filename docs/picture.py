"""Draw the picture of the README: `python docs/picture.py [CHECKPOINT TRAIN]`.

With a classifier and a table of its training texts, the neighbours are searched again and stored.
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

STATIC = Path(__file__).parent / "_static"
PICTURE, NEIGHBOURS = STATIC / "search.svg", STATIC / "search.json"
QUERY = "He sold his car to pay for the operation."
SHOWN = 5
WIDTH, TOP, LINE, COLUMN = 900, 92, 26, 425
TEXT, QUIET, FOUND, BAR = "#1f2933", "#616e7c", "#1b7f5c", "#dde3ea"


def search(checkpoint: str, train: str) -> dict[str, Any]:
    """Find the neighbours of `QUERY`, and how many queries find their paraphrase first."""
    from isoadapt import AdaptedEncoder, LogitPreservingWhitening
    from isoadapt.datasets import load_similarity_pairs, load_table

    pairs = load_similarity_pairs()
    asked = np.flatnonzero(pairs.scores >= 4)
    model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(load_table(train)[0])
    found: dict[str, Any] = {"queries": len(asked), "documents": len(pairs.right)}
    ways = {"before": model.pipeline_["encoder"].transform, "after": model.transform}
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


def picture() -> str:
    """Return the SVG: the neighbours of the query, before and after, with their cosines."""
    found = json.loads(NEIGHBOURS.read_text("utf-8"))
    height = TOP + LINE * SHOWN + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="13" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>',
        f'<text x="20" y="32" font-size="15">Nearest to “{escape(QUERY)}”, '
        f'with cosines: <tspan fill="{FOUND}">its paraphrase</tspan> should come first</text>',
    ]
    titles = {"before": "the classifier's vectors", "after": "the same, LogitPreservingWhitening"}
    for i, (name, title) in enumerate(titles.items()):
        left = 20 + COLUMN * i
        parts.append(f'<text x="{left}" y="66" font-weight="bold">{escape(title)}</text>')
        for k, (text, cosine) in enumerate(found[name]["neighbours"]):
            y, right = TOP + LINE * k, text == found["answer"]
            style = f' fill="{FOUND}" font-weight="bold"' if right else ""
            parts += [
                f'<rect x="{left}" y="{y - 14}" width="{36 * cosine:.1f}" height="20" rx="3" '
                f'fill="{FOUND if right else BAR}" opacity="{0.3 if right else 1}"/>',
                f'<text x="{left + 4}" y="{y}">{cosine:.2f}</text>',
                f'<text x="{left + 44}" y="{y}" font-size="12"{style}>{escape(text)}</text>',
            ]
        counted = (
            f"{found[name]['first']} of {found['queries']} queries find their paraphrase first"
        )
        y = TOP + LINE * SHOWN + 14
        parts.append(f'<text x="{left}" y="{y}" fill="{QUIET}">{counted}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:]:
        stored = json.dumps(search(*sys.argv[1:]), indent=1, ensure_ascii=False)
        NEIGHBOURS.write_text(f"{stored}\n", "utf-8")
    PICTURE.write_text(picture(), "utf-8")
