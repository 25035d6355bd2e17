"""Reading of queries, documents, and which documents are relevant to which query."""

from pathlib import Path
from typing import Any

from isoadapt.datasets._tables import load_table, read_table


def load_relevance(
    queries: Path, documents: Path | None = None, relevant: Path | None = None
) -> tuple[list[Any], list[Any], list[set[int]]]:
    """Read queries, documents, and the row numbers of the documents relevant to each query.

    `relevant` has the columns query and document, which name rows of the other two tables. Without
    it, they are in the first table and hold texts. Queries without a document are left out.
    """
    path = relevant or queries
    pairs, _ = load_table(path, text=("query", "document"), label=None)
    asked, found = ({text: text for text in side} for side in zip(*pairs, strict=True))
    if documents is not None:
        asked, found = _by_id(queries), _by_id(documents)
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


def _by_id(path: Path) -> dict[str, Any]:
    """Read the texts of a table by its column id or, without one, by their row numbers from 1."""
    has_ids = "id" in read_table(path.expanduser())
    texts, ids = load_table(path, label="id" if has_ids else None)
    found = dict(zip(map(str, ids if has_ids else range(1, len(texts) + 1)), texts, strict=True))
    if len(found) < len(texts):
        raise ValueError(f"{path}: the column id holds a value twice: number the rows differently")
    return found
