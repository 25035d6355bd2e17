"""An anchor: a penalty that holds the vector of each text near its vector before fine-tuning."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity


class Anchor(nn.Module):
    """1 minus the mean cosine between the vector of each text and its vector from before."""

    texts: Tensor  # (n,), keys of the texts in ascending order; none before they are encoded
    vectors: Tensor  # (n, d), their vectors from before

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("texts", torch.empty(0, dtype=torch.long))
        self.register_buffer("vectors", torch.empty(0, 0))

    def forward(self, points: Tensor, texts: Tensor) -> Tensor:
        """Compute the penalty of the vectors (b, d) of texts with these keys (b,)."""
        rows = torch.searchsorted(self.texts, texts).clamp(max=len(self.texts) - 1)
        if not torch.equal(self.texts[rows], texts):
            raise ValueError(
                "penalty='anchor': a batch has a text that was not among the training rows when "
                "training began; give the rows of the run that is resumed, and a data_collator "
                "that gives a text the same tokens each time"
            )
        return 1 - cosine_similarity(points, self.vectors[rows]).mean()

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, own in self.named_buffers():  # take the number of texts of the state
            setattr(self, name, torch.empty_like(state.get(prefix + name, own), device=own.device))
        super()._load_from_state_dict(state, prefix, *rest)
