"""Fit of the linear map between hidden states of tokens in two encoders (model stitching).

Lenc and Vedaldi (2015); Bansal, Nakkiran and Barak (2021).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt._utils.state import own_state
from isoadapt.encoders._aligned import Aligned, Tail, model_class
from isoadapt.encoders._backbone import eval_copy
from isoadapt.encoders._batching import PAIR, Embed, explained_failure, to_device
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import ALIGNED, MODES, Normalize, Pooling
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import model_inputs
from isoadapt.geometry import Moments
from isoadapt.geometry._ridge import standardised_path

_RIDGE = 1e-2  # relative to the variance of each column
_SAMPLE = 100  # texts whose tokens are compared
_TOLERANCE = 1e-6  # of cosines in float32; where it is more, that of rounding


class Part(NamedTuple):
    """Texts of a fit."""

    texts: Texts
    weights: NDArray[Any]
    held: NDArray[np.bool_]  # whether a text is left out of the second fit


def last_layers(teacher: Any, n_layers: int) -> Aligned:
    """Return a teacher's last layers, which read its own states, or raise ValueError."""
    if not isinstance(teacher, Opened):
        raise ValueError("the teacher is not a transformer whose hidden states are known")
    pooling, base, depth = teacher.pooling, teacher.backbone.base, teacher.backbone.n_layers
    if not {*pooling.modes} <= {*MODES} or any(layer != -1 for _, layer in pooling.parts):
        raise ValueError("the teacher's vectors are not pooled from its last hidden state")
    if n_layers > depth:
        raise ValueError(f"the teacher has only {depth} layers")
    model_class(type(base).__name__)
    width, tail = teacher.backbone.hidden_size, Tail(eval_copy(base), n_layers).model
    weights = dict(tail.named_parameters()) | dict(tail.named_buffers())
    alone = Aligned(
        type(base).__name__,
        json.dumps(base.config.to_dict(), default=str),
        n_layers,
        {name: _array(values) for name, values in weights.items()},
        tuple(sorted(teacher.backbone.inputs - {"input_ids"} | {"attention_mask"})),
        pooling.modes,
        (depth - n_layers,),
        np.eye(width, dtype=np.float32),
        np.zeros(width, dtype=np.float32),
    )
    batch = teacher.tokens(PAIR).batch(0, 2)
    unit = replace(teacher, pooling=replace(pooling, steps=(Normalize(),)))
    read = replace(teacher, pooling=Pooling((ALIGNED,), layers=(depth,), aligned=alone))
    cosines = (unit._embed(batch) * read._embed(batch)).sum(dim=1)
    if not bool((cosines > 1 - max(_TOLERANCE, torch.finfo(base.dtype).eps)).all()):
        raise ValueError("the teacher's last layers need more than the states before them")
    return alone


def check_tokens(encoder: Any, teacher: Opened, texts: Texts) -> None:
    """Raise ValueError unless both encoders read the same tokens of texts."""
    if not isinstance(encoder, Opened):
        raise ValueError("the encoder is not a transformer whose hidden states are known")
    length, limit = encoder.length(texts.second is not None), teacher.backbone.limit
    if limit is not None and (length is None or length > limit):
        raise ValueError(
            f"the teacher has positions for {limit} tokens, but the encoder's max_length={length}"
        )
    sample = texts.take(range(min(_SAMPLE, len(texts))))
    own, other = (
        model_inputs(each.backbone, sample, length).flat["input_ids"] for each in (encoder, teacher)
    )
    if not np.array_equal(own, other):
        raise ValueError("the tokenizers of encoder and teacher differ")


@own_state(models=True)
def align(
    encoder: Opened,
    teacher: Opened,
    alone: Aligned,
    parts: Sequence[Part],
    progress: Callable[[int], Any] = lambda n_texts: None,
    ridge: float = _RIDGE,
) -> tuple[Aligned, Aligned]:
    """Fit the map in front of a teacher's last layers, also without the texts held out."""
    depth = encoder.backbone.n_layers
    states = tuple(sorted({0, depth // 3, 2 * depth // 3, depth - 1, depth}))
    sums, p = [_Sums(), _Sums()], len(states) * encoder.backbone.hidden_size

    def embed(own: Opened) -> Embed:
        """Return what computes the states of tokens in both encoders."""
        models = own.backbone.base, eval_copy(teacher.backbone.base)
        readers = zip((own, teacher), models, (states, (-1 - alone.n_layers,)), strict=True)
        return partial(_states, tuple(readers))

    for texts, weights, held in parts:
        with closing(encoder.batches(texts, embed, teacher.equal_lengths)) as batches:
            for numbers, (rows, counts) in batches:
                of_texts = np.repeat(numbers, counts)
                for own, chosen in zip(sums, (~held, held), strict=True):
                    kept = np.flatnonzero(chosen[of_texts] & (weights[of_texts] > 0))
                    own.add(rows[kept], torch.from_numpy(weights[of_texts[kept]]))
                progress(len(numbers))

    def solved() -> Aligned:
        coef = next(standardised_path(moments, p, [ridge]))
        offset = _array(moments.mean[p:] - moments.mean[:p] @ coef)
        return replace(alone, states=states, matrix=_array(coef.T.contiguous()), offset=offset)

    moments = Moments()
    sums.pop(0).add_to(moments)
    without_held = solved()
    sums.pop().add_to(moments)
    return solved(), without_held


@torch.inference_mode()
def _states(readers: Any, batch: dict[str, Tensor]) -> tuple[Tensor, NDArray[Any]]:
    """Return states of the tokens of a batch (n, p + q) in both models, and tokens of each text."""
    found, mask = [], batch["attention_mask"].bool()
    for opened, model, states in readers:
        with explained_failure(opened.backbone, batch):
            device = opened.backbone.model.device
            inputs = opened.backbone.accepted(to_device(batch, device))
            hidden = model(**inputs, output_hidden_states=True).hidden_states
            found += [hidden[i][:, : mask.shape[1]][mask.to(device)].float() for i in states]
    rows = torch.cat([each.to(found[-1].device) for each in found], dim=1)
    return rows, mask.sum(dim=1).numpy()


class _Sums:
    """Sums of rows with weights and of their products, about a pivot, in float32 to save memory."""

    count = 0.0

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add rows, which are overwritten."""
        if not len(rows):
            return
        if not self.count:
            self.pivot, d = rows.mean(dim=0), rows.shape[1]
            self.sums, self.products = self.pivot.new_zeros(d), self.pivot.new_zeros(d, d)
        roots = weights.to(rows).sqrt()
        rows -= self.pivot
        rows *= roots[:, None]
        self.count += float(weights.sum())
        self.sums += roots @ rows
        self.products.addmm_(rows.T, rows)

    def add_to(self, moments: Moments) -> None:
        """Add the rows to moments, without a copy of the products in float64."""
        if self.count:
            shift = self.sums.double() / self.count
            nothing = shift.new_zeros(1, 1).expand_as(self.products)
            moments.merge(Moments._of(self.count, self.pivot.double() + shift, nothing))
            for rows, products in zip(moments.scatter, self.products, strict=True):
                rows += products  # the whole would be copied to float64 first
            moments.scatter.addr_(shift, shift, alpha=-self.count)


def _array(values: Tensor) -> NDArray[Any]:
    """Return values as an array, numbers that are not integers in float32."""
    return (values.float() if values.is_floating_point() else values).numpy(force=True)
