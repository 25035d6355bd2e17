"""Measurement of how many texts an encoder truncates."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from isoadapt.encoders._batching import Tokens, tokenize, tokenize_blocks
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._transformer import TransformerEncoder


@dataclass(frozen=True)
class Truncation:
    """How many of the given texts, duplicates included, an encoder truncates."""

    max_length: int | None  # tokens, special tokens included; None if there is no limit
    n_texts: int  # texts or pairs of texts
    n_truncated: int
    share_of_tokens_kept: float  # tokens that are read, as a fraction of all tokens

    @property
    def share_of_texts_truncated(self) -> float:
        """Fraction of the texts that are truncated."""
        return self.n_truncated / self.n_texts

    def to_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        return {
            "max_length": self.max_length,
            "n_texts": self.n_texts,
            "n_truncated": self.n_truncated,
            "share_of_texts_truncated": self.share_of_texts_truncated,
            "share_of_tokens_kept": self.share_of_tokens_kept,
        }

    def __str__(self) -> str:
        if self.max_length is None:
            return f"{self.n_texts} texts, none truncated (the model has no limit)"
        if not self.n_truncated:
            return f"{self.n_texts} texts, none truncated at max_length={self.max_length} tokens"
        return (
            f"{self.n_texts} texts, {self.n_truncated} truncated at max_length={self.max_length} "
            f"tokens ({self.share_of_tokens_kept:.4g} of all tokens are kept)"
        )


def measure_truncation(encoder: TransformerEncoder, X: Any) -> Truncation:
    """Count the texts that an encoder truncates, without running its model."""
    encoder._validate_params()
    texts, inverse = as_texts(X).unique()
    backbone = encoder._outline()
    pooling = encoder._pooling(backbone)
    limit = encoder._length(texts, backbone, pooling)

    def read(part: Texts) -> Tokens:
        """Tokenise texts without truncation."""
        return tokenize(
            backbone.tokenizer,
            part.lower() if pooling.lowercase else part,
            max_length=None,
            names=frozenset({"input_ids"}),
            counts_positions=True,
        )

    unique = np.empty(len(texts), dtype=np.int64)
    for tokens in tokenize_blocks(texts, read):
        unique[tokens.order] = tokens.lengths
    lengths = unique[inverse]
    kept = lengths if limit is None else np.minimum(lengths, limit)
    n_truncated = int((kept < lengths).sum())
    return Truncation(limit, len(lengths), n_truncated, float(kept.sum() / lengths.sum()))
