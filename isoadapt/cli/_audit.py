"""Implementation of ``isoadapt audit``."""

from functools import partial
from typing import Any

import numpy as np

from isoadapt import TransformerEncoder
from isoadapt.cli._options import Console, Source, WrongUsage, each_alone, read_rows
from isoadapt.datasets import load_table
from isoadapt.encoders import layer_report
from isoadapt.encoders._texts import as_texts
from isoadapt.encoders._tokenization import tokenize_blocks
from isoadapt.encoders._transformer import warn_if_exported
from isoadapt.metrics import IsotropyReport, isotropy_report
from isoadapt.metrics._isotropy_report import NEXT_STEPS, REFERENCES


def audit(source: Source, layers: bool, console: Console) -> None:
    """Print the isotropy of the embeddings of texts, or of a matrix of embeddings."""
    alone = {"--layers": layers, "--separately": source.separately}  # rows without labels
    given = [option for option, is_given in alone.items() if is_given]
    if given and source.is_matrix():
        raise WrongUsage(f"{given[0]} needs a checkpoint and texts, but {source.path} is a matrix")
    if given and source.label is not None:
        raise WrongUsage(f"--label cannot be combined with {given[0]}, whose rows have no label")
    with console.notes():
        if source.is_matrix():
            has_label = source.label is not None
            X, labels = read_rows(source, with_labels=has_label, mapped=True)
            _check_several(X, source)
            report = isotropy_report(X, labels=labels if has_label else None)
            shown, figures = str(report), _plain(report, pooled=False)
        else:
            shown, figures = _audit_texts(source, layers, console)
    console.show(shown, figures)


def _audit_texts(source: Source, layers: bool, console: Console) -> tuple[str, dict[str, Any]]:
    """Describe the embeddings of texts."""
    rows, labels = load_table(source.path, text=source.text, label=source.label)
    if source.separately:
        rows = each_alone(rows, source.path)
    if not layers:
        _check_several(rows, source)
    encoder = TransformerEncoder(
        source.model,
        pooling=source.pooling,
        max_length=source.max_length,
        verbose=console.verbose,
    )
    warn_if_exported(encoder)
    line, truncation = _measure_truncation(encoder, rows)
    vectors = encoder.open().describe()
    lines = [f"Model: {source.model}", f"Texts: {line}"]
    figures: dict[str, Any] = {"truncation": truncation, "vectors": vectors}
    if layers:
        tokens = layer_report(encoder, rows)
        lines += ["", "Tokens of each layer:", str(tokens), ""]
        figures |= tokens.to_dict()
    unit = "text" if isinstance(rows[0], str) else "pair of texts"
    lines.append(f"Vectors: one for each {unit}, {vectors}")
    if not layers or len(set(rows)) > 1:
        report = isotropy_report(encoder.transform(rows), labels=labels if source.label else None)
        lines.append(str(report))
        figures |= _plain(report, pooled=layers)
    return "\n".join(lines), figures


def _check_several(rows: Any, source: Source) -> None:
    if len(rows) < 2:
        raise ValueError(
            f"{source.path} holds {len(rows)} row(s), but at least 2 are needed, because one row "
            "has no variance: name a file with more texts or embeddings"
        )


def _plain(report: IsotropyReport, pooled: bool) -> dict[str, Any]:
    """Return the figures of a report, under "pooled" beside those of layers, for JSON."""
    references = {
        name: {key: pair[place] for key, pair in REFERENCES.items()}
        for place, name in enumerate(("healthy", "collapsed"))
    }
    figures = {"pooled": report.to_dict()} if pooled else report.to_dict()
    return figures | {"references": references, "next_steps": " ".join(NEXT_STEPS)}


def _measure_truncation(encoder: TransformerEncoder, X: Any) -> tuple[str, dict[str, Any]]:
    """Count the given texts, duplicates too, that an encoder truncates, without its model."""
    opened, (texts, inverse) = encoder.open(), as_texts(X).unique()
    limit = opened.length(texts.second is not None)
    unique = np.empty(len(texts), dtype=np.int64)
    for tokens in tokenize_blocks(texts, partial(opened.tokens, whole=True)):
        unique[tokens.order] = tokens.lengths
    lengths = unique[inverse]
    kept = lengths if limit is None else np.minimum(lengths, limit)
    n, n_truncated = len(lengths), int((kept < lengths).sum())
    figures = {
        "max_length": limit,  # tokens, special tokens included; None if there is no limit
        "n_texts": n,
        "n_truncated": n_truncated,
        "share_of_tokens_kept": float(kept.sum() / lengths.sum()),
        "share_of_texts_truncated": n_truncated / n,
    }
    where = "(the model has no limit)" if limit is None else f"at max_length={limit} tokens"
    if n_truncated:
        where += f" ({figures['share_of_tokens_kept']:.4g} of all tokens are kept)"
    return f"{n} texts, {n_truncated or 'none'} truncated {where}", figures
