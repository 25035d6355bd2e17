"""Implementation of ``isoadapt duplicates`` and ``isoadapt search``."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics.pairwise import cosine_similarity

from isoadapt import TransformerEncoder
from isoadapt._utils.files import atomic_path
from isoadapt.cli._options import Console
from isoadapt.encoders._transformer import has_unread_export
from isoadapt.metrics import find_duplicates


def duplicates(
    rows: list[Any], model: str, length: int | None, asked: float, out: Path | None, to: Console
) -> None:
    """Print the most similar pairs of texts, and write all that are above the threshold."""
    X = _encoder(model, length, to).transform(rows)
    texts = np.array([row if isinstance(row, str) else " / ".join(row) for row in rows], object)
    found = find_duplicates(X, false_pairs=asked, verbose=to.verbose)
    (i, j), figures = found.pairs.T, found._asdict() | {"n_texts": len(rows)}
    columns = {"cosine": figures.pop("cosines"), "row1": i + 1, "row2": j + 1}
    table = pd.DataFrame(columns | {"text1": texts[i], "text2": texts[j]})
    if out is not None:
        with atomic_path(out.expanduser()) as path:
            table.to_csv(path, sep="\t", index=False)
    figures |= {"pairs": table.to_dict("records"), "file": out and str(out)}
    pair = "{cosine:.4f}  {row1}: {text1}\n        {row2}: {text2}"
    said = "Pairs: {} above the cosine {:.4f} ({:.4f} to {:.4f}); {:g} of unrelated texts expected"
    lines = [pair.format(**each) for each in figures["pairs"][:10]]
    lines += [said.format(len(table), *found[2:5], asked)]
    lines += [f"Texts: {len(rows)}, of which {found.n_copies} are copies of others, and left out"]
    to.show("\n".join(lines), figures)


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
