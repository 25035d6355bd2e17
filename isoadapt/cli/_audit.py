"""Implementation of ``isoadapt audit``."""

import shlex
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from isoadapt.cli._options import Console, Source, WrongUsage, read_rows

if TYPE_CHECKING:
    from isoadapt import TransformerEncoder
    from isoadapt.metrics import IsotropyReport

_Result = tuple[str, dict[str, Any]]  # text, and figures for JSON


def audit(source: Source, layers: bool, full: bool, console: Console) -> None:
    """Print the isotropy of the embeddings of texts, or of a matrix of embeddings."""
    alone = {"--layers": layers, "--separately": source.separately}  # rows without labels
    given = [option for option, is_given in alone.items() if is_given]
    if given and source.is_matrix():
        raise WrongUsage(f"{given[0]} needs a checkpoint and texts, but {source.path} is a matrix")
    if given and source.label is not None:
        raise WrongUsage(f"--label cannot be combined with {given[0]}, whose rows have no label")
    with console.notes():
        if source.is_matrix():
            console.show(*_audit_matrix(source, full))
        else:
            console.show(*_audit_texts(source, layers, full, console.verbose))


def _audit_matrix(source: Source, full: bool) -> _Result:
    """Describe a matrix of embeddings."""
    has_label = source.label is not None
    X, labels = read_rows(source, with_labels=has_label, mapped=True)
    _check_number(X, source)

    from isoadapt.metrics import isotropy_report
    from isoadapt.metrics._report_text import table

    report = isotropy_report(X, labels=labels if has_label else None)
    line, match = _match(X, full)
    return f"{report.verdict()}\n{table(report, full)}{line}", match | _plain(report, None, False)


def _audit_texts(source: Source, layers: bool, full: bool, verbose: int) -> _Result:
    """Describe the embeddings of texts."""
    rows, labels = cast(Any, source.table)
    if not layers:
        _check_number(rows, source)

    from isoadapt.encoders import layer_report
    from isoadapt.metrics import isotropy_report
    from isoadapt.metrics._report_text import table

    encoder = source.encoder(verbose)
    line, truncation = _measure_truncation(encoder, rows)
    opened = encoder.open()
    unit = "text" if isinstance(rows[0], str) else "pair of texts"
    about = [
        f"Model: {source.model}",
        f"Texts: {line}",
        f"Vectors: one for each {unit}, {opened.describe()}",
    ]
    figures: dict[str, Any] = {"truncation": truncation, "vectors": opened.describe()}
    if layers:
        tokens = layer_report(encoder, rows)
        about += ["", "Tokens of each layer:", str(tokens)]
        figures |= tokens.to_dict()
    if layers and len(set(rows)) == 1:
        return "\n".join(about), figures
    X = encoder.transform(rows)
    report = isotropy_report(X, labels=labels if source.label else None)
    line, match = _match(X, full)
    head = opened.head() is not None
    figures |= match | _plain(report, head, pooled=layers)
    figures["verdict"], command = _advice(report, head, encoder, source)
    return "\n".join([figures["verdict"], *command, *about, table(report, full)]) + line, figures


def _match(X: Any, full: bool) -> _Result:
    """Return the match threshold of vectors; as a line, unless it is not shown or they are few."""
    from isoadapt.metrics import match_threshold

    with suppress(ValueError):
        found = match_threshold(X)
        line = "\n  match threshold    {:.6f} ({:.6f} to {:.6f}), exceeded by 0.1 % of random pairs"
        return line.format(*found) if full else "", {"match_threshold": found._asdict()}
    return "", {"match_threshold": None}


def _advice(
    report: "IsotropyReport", head: bool, encoder: "TransformerEncoder", source: Source
) -> tuple[str, list[str]]:
    """Return the verdict with the next step, and the command for it, if there is one."""
    from isoadapt.adapters._registry import METHODS
    from isoadapt.encoders._transformer import has_unread_export
    from isoadapt.metrics._report_text import repair

    verdict, model, path = report.verdict(head), str(source.model), str(source.path)
    names = [name for name, adapter in METHODS.items() if adapter == repair(report, head)]
    commands = [["fit", name, "--on", path, "--model", model] for name in names]
    options = ["--separately"] * source.separately
    options += ["--text", ",".join(source.text)] if source.text else []
    options += ["--max-length", str(source.max_length)] if source.max_length else []
    last = ["--out", "my-adapter"]
    if has_unread_export(encoder):
        step = "measure the repaired vectors, which were exported beside the classifier"
        verdict = f"{verdict.splitlines()[0]}\nNext: {step}."
        commands, last = [["audit", model, path]], ["--vectors", "exported"]
    return verdict, [f"  {shlex.join(['isoadapt', *each, *last, *options])}" for each in commands]


def _check_number(rows: Any, source: Source) -> None:
    if len(rows) < 4:  # for which the corrected IsoScore is not defined
        raise ValueError(
            f"{source.path} holds {len(rows)} row(s), but at least 4 are needed: name a file with "
            "more texts or embeddings"
        )


def _plain(report: "IsotropyReport", head: bool | None, pooled: bool) -> dict[str, Any]:
    """Return the figures of a report, under "pooled" beside those of layers, for JSON."""
    from isoadapt.metrics._report_text import REFERENCES

    references = {
        name: {key: pair[place] for key, pair in REFERENCES.items()}
        for place, name in enumerate(("healthy", "collapsed"))
    }
    figures = {"pooled": report.to_dict()} if pooled else report.to_dict()
    return figures | {"references": references, "verdict": report.verdict(head)}


def _measure_truncation(encoder: "TransformerEncoder", X: Any) -> _Result:
    """Count the given texts, duplicates too, that an encoder truncates, without its model."""
    from isoadapt.encoders._texts import as_texts
    from isoadapt.encoders._tokenization import tokenize_blocks

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
