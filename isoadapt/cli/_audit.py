"""Implementation of ``isoadapt audit``."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from isoadapt import TransformerEncoder
from isoadapt.cli._options import Console, WrongUsage, check_several_rows, each_alone
from isoadapt.datasets import load_table
from isoadapt.datasets._matrices import load_matrix
from isoadapt.encoders import layer_report
from isoadapt.encoders._texts import as_texts
from isoadapt.encoders._tokenization import tokenize_blocks
from isoadapt.metrics import IsotropyReport, isotropy_report
from isoadapt.metrics._isotropy_report import NEXT_STEPS, REFERENCES


def audit(
    source: str,
    texts: Path | None,
    text: list[str] | None,
    label: str | None,
    max_length: int | None,
    layers: bool,
    separately: bool,
    console: Console,
) -> None:
    """Print the isotropy of the embeddings of texts, or of a matrix of embeddings."""
    if layers:
        _check_usage("--layers", "tokens have no class", source, label)
    if separately:
        _check_usage("--separately", "a label is that of a pair of texts", source, label)
    if _is_matrix(source):
        _audit_matrix(source, texts, text, label, console)
        return
    if texts is None:
        raise WrongUsage(
            f"{source!r} is read as a checkpoint, which needs texts: isoadapt audit {source} "
            "texts.tsv (the name of a matrix must end in .npy or .parquet)"
        )
    with console.notes():
        rows, labels = load_table(texts, text=text, label=label)
        if separately:
            rows = each_alone(rows, texts)
        encoder = TransformerEncoder(source, max_length=max_length, verbose=console.verbose)
        truncation = _measure_truncation(encoder, rows)
        vectors = encoder.open().describe()
        lines = [f"Model: {source}", f"Texts: {truncation}"]
        figures: dict[str, Any] = {"truncation": truncation.to_dict(), "vectors": vectors}
        if layers:
            tokens = layer_report(encoder, rows)
            lines += ["", "Tokens of each layer:", str(tokens), ""]
            figures |= tokens.to_dict()
        else:
            check_several_rows(rows, str(texts))
        unit = "text" if isinstance(rows[0], str) else "pair of texts"
        lines.append(f"Vectors: one for each {unit}, {vectors}")
        report = None
        if not layers or len(set(rows)) > 1:
            report = isotropy_report(encoder.transform(rows), labels=labels if label else None)
            lines.append(str(report))
    console.show("\n".join(lines), figures | _plain(report, pooled=layers))


def _audit_matrix(
    source: str, texts: Path | None, text: list[str] | None, label: str | None, console: Console
) -> None:
    """Print the report of a matrix of embeddings."""
    if texts is not None:
        raise WrongUsage(f"texts={str(texts)!r} needs a checkpoint, but {source!r} is a matrix")
    if label is not None and source.lower().endswith(".npy"):
        raise WrongUsage(f"--label {label}: a .npy matrix has no columns. Use Parquet")
    with console.notes():
        with_labels = label is not None
        X, labels = load_matrix(
            source, label=label or "label", with_labels=with_labels, features=text, mapped=True
        )
        check_several_rows(X, source)
        report = isotropy_report(X, labels=labels if label else None)
    console.show(str(report), _plain(report, pooled=False))


def _plain(report: IsotropyReport | None, pooled: bool) -> dict[str, Any]:
    """Return the figures of a report, under "pooled" beside those of layers, for JSON."""
    if report is None:
        return {}
    references = {
        name: {key: pair[place] for key, pair in REFERENCES.items()}
        for place, name in enumerate(("healthy", "collapsed"))
    }
    figures = {"pooled": report.to_dict()} if pooled else report.to_dict()
    return figures | {"references": references, "next_steps": " ".join(NEXT_STEPS)}


def _check_usage(option: str, why: str, source: str, label: str | None) -> None:
    """Raise WrongUsage for an option that is given with a matrix or a label."""
    if _is_matrix(source):
        raise WrongUsage(
            f"{option} needs a checkpoint and texts, but {source!r} is a matrix: omit {option}, or "
            "name the checkpoint"
        )
    if label is not None:
        raise WrongUsage(
            f"--label {label} cannot be combined with {option}, because {why}: omit one of them"
        )


def _is_matrix(source: str) -> bool:
    """Return whether the source is a file of embeddings rather than a checkpoint."""
    return source.lower().endswith((".npy", ".parquet"))


@dataclass(frozen=True)
class _Truncation:
    """How many of the given texts, duplicates included, an encoder truncates."""

    max_length: int | None  # tokens, special tokens included; None if there is no limit
    n_texts: int  # texts or pairs of texts
    n_truncated: int
    share_of_tokens_kept: float  # tokens that are read, as a fraction of all tokens

    def to_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        return {**asdict(self), "share_of_texts_truncated": self.n_truncated / self.n_texts}

    def __str__(self) -> str:
        if self.max_length is None:
            return f"{self.n_texts} texts, none truncated (the model has no limit)"
        if not self.n_truncated:
            return f"{self.n_texts} texts, none truncated at max_length={self.max_length} tokens"
        return (
            f"{self.n_texts} texts, {self.n_truncated} truncated at max_length={self.max_length} "
            f"tokens ({self.share_of_tokens_kept:.4g} of all tokens are kept)"
        )


def _measure_truncation(encoder: TransformerEncoder, X: Any) -> _Truncation:
    """Count the texts that an encoder truncates, without running its model."""
    opened, (texts, inverse) = encoder.open(), as_texts(X).unique()
    limit = opened.length(texts.second is not None)
    unique = np.empty(len(texts), dtype=np.int64)
    for tokens in tokenize_blocks(texts, partial(opened.tokens, whole=True)):
        unique[tokens.order] = tokens.lengths
    lengths = unique[inverse]
    kept = lengths if limit is None else np.minimum(lengths, limit)
    n_truncated = int((kept < lengths).sum())
    return _Truncation(limit, len(lengths), n_truncated, float(kept.sum() / lengths.sum()))
