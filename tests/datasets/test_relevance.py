"""Queries, documents, and which are relevant, from tables."""

import pytest

from isoadapt.datasets._relevance import load_relevance


def test_rows_are_named_by_numbers_or_by_ids_which_differ(tmp_path):
    queries, documents, relevant = (tmp_path / f"{name}.csv" for name in "qdr")
    queries.write_text("text\nWho?\nWhy?\nWhen?\n")
    documents.write_text("text,id\nNow.,n\nHim.,h\nHim again.,g\n")
    relevant.write_text("query,document\n3,n\n1,h\n1,g\n")
    found = load_relevance(queries, documents, relevant)
    assert found == (["When?", "Who?"], ["Now.", "Him.", "Him again."], [{0}, {1, 2}])
    relevant.write_text("query,document\n3,n\n4,h\n")
    with pytest.raises(ValueError, match="row 2: there is no query '4' or no document 'h'"):
        load_relevance(queries, documents, relevant)
    documents.write_text("text,id\nNow.,n\nHim.,n\n")
    with pytest.raises(ValueError, match="id holds a value twice"):
        load_relevance(queries, documents, relevant)
