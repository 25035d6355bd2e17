"""Implementation of ``isoadapt duplicates`` and ``isoadapt search``."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from isoadapt import TransformerEncoder
from isoadapt._utils.files import atomic_path
from isoadapt.cli._options import Console
from isoadapt.encoders._transformer import has_unread_export
from isoadapt.metrics import Duplicates, find_duplicates

_ROUNDING = 1e-6  # of cosines in float32


def duplicates(
    rows: list[Any], model: str, length: int | None, asked: float, out: Path | None, to: Console
) -> None:
    """Print the most similar pairs of texts, and write all that are above the threshold."""
    X = _encoder(model, length, to).transform(rows)
    texts = np.array([row if isinstance(row, str) else " / ".join(row) for row in rows], object)
    found = find_duplicates(X, false_pairs=asked, verbose=to.verbose)
    table, figures = _table(found, texts), found._asdict() | {"n_texts": len(rows)}
    del figures["cosines"]
    if out is not None:
        with atomic_path(out.expanduser()) as path:
            table.to_csv(path, sep="\t", index=False)
    figures |= {"pairs": table.to_dict("records"), "file": out and str(out)}
    pair = "{cosine:.4f}  {row1}: {text1}\n        {row2}: {text2}"
    said = "Pairs: {} above the cosine {:.4f}, whose 95 % interval is {:.4f} to {:.4f}; {:g} of "
    said += "unrelated texts expected"
    lines = [pair.format(**each) for each in figures["pairs"][:10]]
    if len(table) > len(lines):
        lines += [f"... and {len(table) - len(lines)} more, which --out FILE writes"]
    if table.empty:
        lines = ["The closest pairs, below the threshold (--false-pairs lowers it):"]
        lines += [pair.format(**each) for each in _closest(X, texts).to_dict("records")]
    lines += [said.format(len(table), *found[2:5], asked)]
    lines += [f"Texts: {len(rows)}, of which {found.n_copies} are copies of others, and left out"]
    to.show("\n".join(lines), figures)


def _table(found: Duplicates, texts: NDArray[Any]) -> pd.DataFrame:
    """Return the pairs with their cosines, numbers of rows from 1 and texts."""
    i, j = found.pairs.T
    columns = {"cosine": found.cosines, "row1": i + 1, "row2": j + 1}
    return pd.DataFrame(columns | {"text1": texts[i], "text2": texts[j]})


def _closest(X: NDArray[Any], texts: NDArray[Any]) -> pd.DataFrame:
    """Return the five most similar pairs of different rows."""
    neighbours = NearestNeighbors(n_neighbors=1, metric="cosine").fit(np.unique(X, axis=0))
    nearest = 1 - np.sort(neighbours.kneighbors()[0][:, 0])[:10]  # a pair may stand twice
    return _table(find_duplicates(X, threshold=nearest.min() - _ROUNDING), texts)[:5]


def search(rows: list[Any], query: str, model: str, length: int | None, to: Console) -> None:
    """Print the five texts that are nearest to a query."""
    encoder = _encoder(model, length, to)
    cosines = cosine_similarity(encoder.transform([query]), encoder.transform(rows))[0]
    nearest = np.argsort(-cosines, kind="stable")[:5].tolist()
    found = [{"cosine": float(cosines[i]), "row": i + 1, "text": rows[i]} for i in nearest]
    lines = ["{cosine:.4f}  {row}: {text}".format(**each) for each in found]
    to.show("\n".join(lines), {"query": query, "nearest": found})


def _encoder(model: str, max_length: int | None, console: Console) -> TransformerEncoder:
    """Return an encoder, which gives the repaired vectors of a folder that has been exported."""
    found = TransformerEncoder(model, max_length=max_length, verbose=console.verbose)
    return found.set_params(pooling="exported") if has_unread_export(found) else found
