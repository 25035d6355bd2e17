"""Reading of queries, documents, and which documents are relevant to which query."""

from functools import partial
from pathlib import Path
from typing import Any

from isoadapt.datasets._tables import chosen_columns, load_table, read_table, texts_and_labels


def load_relevance(
    queries: Path, documents: Path | None = None, relevant: Path | None = None, encoding: Any = None
) -> tuple[list[Any], list[Any], list[set[int]]]:
    """Read queries, documents, and the row numbers of the documents relevant to each query."""
    path = relevant or queries  # whose columns name rows of both tables or, alone, hold the texts
    pairs, _ = load_table(path, text=("query", "document"), label=None, encoding=encoding)
    asked, found = ({text: text for text in side} for side in zip(*pairs, strict=True))
    if documents is not None:
        asked, found = _by_id(queries, encoding), _by_id(documents, encoding)
    numbers = {name: number for number, name in enumerate(found)}
    chosen: dict[str, set[int]] = {}
    for row, (query, document) in enumerate(pairs, 1):
        if query not in asked or document not in found:
            raise ValueError(
                f"{path}, row {row}: there is no query {query!r} or no document {document!r}; name "
                "them by the columns id of their tables or, without one, by their numbers from 1"
            )
        chosen.setdefault(query, set()).add(numbers[document])
    return [asked[query] for query in chosen], [*found.values()], [*chosen.values()]


def _by_id(path: Path, encoding: str | None) -> dict[str, Any]:
    """Read the texts of a table by its column id or, without one, by their row numbers from 1."""
    choose = partial(chosen_columns, path, None, None)
    table = read_table(path.expanduser(), choose, encoding)
    own = ["id"] if "id" in table else []
    texts, ids = texts_and_labels(path, table, choose(table)[0], own)
    found = dict(zip(map(str, ids if own else range(1, len(texts) + 1)), texts, strict=True))
    if len(found) < len(texts):
        raise ValueError(f"{path}: the column id holds a value twice: number the rows differently")
    return found
