"""Implementation of ``isoadapt audit``."""

import shlex
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from isoadapt import TransformerEncoder
from isoadapt.adapters._registry import METHODS
from isoadapt.cli._options import Console
from isoadapt.cli._sources import Rows
from isoadapt.encoders import layer_report
from isoadapt.encoders._library import LibraryEncoder
from isoadapt.encoders._texts import as_texts
from isoadapt.encoders._tokenization import tokenize_blocks
from isoadapt.encoders._transformer import has_unread_export
from isoadapt.metrics import IsotropyReport, isotropy_report, match_threshold
from isoadapt.metrics._report_text import REFERENCES, repair, state, table


def audit(
    source: Rows, model: str, pooling: str, length: Any, layers: bool, full: bool, console: Console
) -> None:
    """Print the isotropy of the embeddings of texts, or of a matrix of embeddings."""
    encoder = TransformerEncoder(model, pooling=pooling, max_length=length, verbose=console.verbose)
    if (n := len(source.rows)) < 4:  # for which the corrected IsoScore is not defined
        raise ValueError(
            f"{source.files[0]} holds {n} row(s), but at least 4 are needed: name a file with more "
            "texts or embeddings"
        )
    about, figures = _describe_texts(encoder, source.rows, layers) if source.of_texts else ([], {})
    report = isotropy_report(X := source.vectors(encoder), labels=source.labels)
    advice = _advice(report, encoder, source) if source.of_texts else (report.verdict(), [])
    verdict, commands = advice
    lines = [verdict, *commands, *about, table(report, full)]
    match = None
    with suppress(ValueError):  # too few pairs
        match = match_threshold(X)._asdict()
        line = "  match threshold    {:.6f} ({:.6f} to {:.6f}), exceeded by 0.1 % of random pairs"
        lines += [line.format(*match.values())] * full
    healthy, collapsed = ({key: pair[i] for key, pair in REFERENCES.items()} for i in (0, 1))
    figures |= {"pooled": report.to_dict()} if layers else report.to_dict()
    figures["references"] = {"healthy": healthy, "collapsed": collapsed}
    figures |= {"verdict": verdict, "match_threshold": match}
    console.show("\n".join(lines), figures)


def _describe_texts(
    encoder: TransformerEncoder, rows: list[Any], layers: bool
) -> tuple[list[str], dict[str, Any]]:
    """Return lines and figures of the model, the texts it truncates and the tokens of layers."""
    opened, texts = encoder.open(), as_texts(rows)
    about = [
        f"Model: {encoder.model}",
        f"Vectors: one for each {'pair of texts' if texts.second else 'text'}, {opened.describe()}",
    ]
    if isinstance(opened, LibraryEncoder) and not layers:  # whose tokens are not known
        return about, {"vectors": opened.describe()}
    limit, n = opened.length(texts.second is not None), len(texts)
    lengths = np.empty(n, dtype=np.int64)
    for tokens in tokenize_blocks(texts, partial(opened.tokens, whole=True)):
        lengths[tokens.order] = tokens.lengths
    kept = lengths if limit is None else np.minimum(lengths, limit)
    n_truncated, share = int((kept < lengths).sum()), float(kept.sum() / lengths.sum())
    truncation = {
        "max_length": limit,  # tokens, special tokens included; None if there is no limit
        "n_texts": n,
        "n_truncated": n_truncated,
        "share_of_tokens_kept": share,
        "share_of_texts_truncated": n_truncated / n,
    }
    where = "(the model has no limit)" if limit is None else f"at max_length={limit} tokens"
    where += f" ({share:.4g} of all tokens are kept)" * bool(n_truncated)
    about.insert(1, f"Texts: {n} texts, {n_truncated or 'none'} truncated {where}")
    figures: dict[str, Any] = {"truncation": truncation, "vectors": opened.describe()}
    if layers:
        report = layer_report(encoder, rows)
        about += ["", "Tokens of each layer, without pooling (isoscore: 1 = isotropic):"]
        about += [report.to_string(index_names=False, float_format="{:.4g}".format)]
        figures |= {**report.attrs, "layers": report.reset_index().to_dict("records")}
    return about, figures


def _advice(
    report: IsotropyReport, encoder: TransformerEncoder, source: Rows
) -> tuple[str, list[str]]:
    """Return the verdict with the next step, and the commands for it."""
    head = encoder.open().head() is not None
    verdict, model, path = report.verdict(head), str(encoder.model), str(source.files[0])
    options = ["--separately"] * source.columns.separately
    options += ["--text", source.columns.text] if source.columns.text else []
    options += ["--encoding", source.columns.encoding] if source.columns.encoding else []
    options += ["--max-length", str(encoder.max_length)] if encoder.max_length else []
    names = [name for name, adapter in METHODS.items() if adapter == repair(report, head)]
    fits = [[name] for name in names]
    if head and state(report) in ("collapsed", "partly"):
        fits.insert(0, ["teacher-readout", "--teacher", "my-base"])
    end = ["--on", path, "--model", model, "--out", "my-adapter", *options]
    commands = [["fit", *each, *end] for each in fits]
    if has_unread_export(encoder):
        step = "measure the repaired vectors, which were exported beside the classifier"
        verdict = f"{verdict.splitlines()[0]}\nNext: {step}."
        commands = [["audit", model, path, "--vectors", "exported", *options]]
    return verdict, [f"  {shlex.join(['isoadapt', *each])}" for each in commands]
