"""Selection of the vectors that are penalised, and their extraction from a forward pass."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from isoadapt.encoders._backbone import find_last_linear, is_classifier
from isoadapt.encoders._pooling import Pooling
from isoadapt.finetune._places import ALL, HEAD_INPUT, LAST, OUTPUT_EMBEDDINGS

Where = str | Sequence[int]

_LAST_TOKEN = Pooling(("lasttoken",))


class Points(NamedTuple):
    """Vectors of a model, gradients included."""

    values: Tensor  # (n, d)
    rows: Tensor | None  # (n,), the row of the batch each vector belongs to; None for weights


def check_where(where: Any, model: Any) -> Where:
    """Check that a model has the vectors `where`; return it with layers as sorted indices.

    A layer is an index into the hidden states: 0 is the input of the first layer, -1 the last.
    """
    if not hasattr(model, "get_output_embeddings"):
        raise TypeError(
            f"model is a {type(model).__name__}; pass a PreTrainedModel of transformers"
        )
    if where == OUTPUT_EMBEDDINGS:
        if getattr(model.get_output_embeddings(), "weight", None) is None:
            raise ValueError(
                f"where={where!r}: {type(model).__name__} has no output embeddings, which only "
                "language models have (causal, masked, sequence to sequence); choose "
                "'head_input', 'last', 'all' or a list of layers"
            )
    elif where == HEAD_INPUT:
        output_layer(model)
    elif where in (LAST, ALL) or _are_layers(where):
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"where={where!r}: {type(model).__name__} has two stacks of layers, an encoder and "
                "a decoder; choose 'head_input' or 'output_embeddings'"
            )
        return where if isinstance(where, str) else _layers(where, model)
    else:
        raise ValueError(
            f"where={where!r} must be 'head_input', 'last', 'all', 'output_embeddings' or a list "
            "of layers such as [1, 6]"
        )
    return where


def output_layer(model: Any) -> nn.Module:
    """Return the last linear layer of a model with a head.

    This is the head of a classifier, otherwise the output embeddings, otherwise the last Linear
    outside the base model.
    """
    if is_classifier(model):
        return find_last_linear(model)
    head = model.get_output_embeddings()
    if head is not None:
        return head
    base = set(model.base_model.modules())
    outside = [m for m in model.modules() if isinstance(m, nn.Linear) and m not in base]
    if not outside:
        raise ValueError(
            f"where='head_input': {type(model).__name__} has no linear layer after its base model; "
            "choose 'last', 'all' or a list of layers"
        )
    return outside[-1]


class Watch:
    """Context manager that records the head's input during one forward pass.

    `model` must be unwrapped, `places` come from :func:`check_where`, and `options` are keyword
    arguments that must be passed to the forward pass.
    """

    def __init__(self, model: Any, places: Sequence[Where]) -> None:
        self.model = model
        self._reads_head = HEAD_INPUT in places
        with_states = any(place not in (HEAD_INPUT, OUTPUT_EMBEDDINGS) for place in places)
        states = {"output_hidden_states": True, "return_dict": True}
        self.options = states if with_states else {}
        self._entered: Tensor | None = None

    def __enter__(self) -> Self:
        if self._reads_head:
            self._handle = output_layer(self.model).register_forward_pre_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        if self._reads_head:
            self._handle.remove()

    def _keep(self, _: nn.Module, entered: tuple[Tensor, ...]) -> None:
        self._entered = entered[0]

    def points(self, place: Where, outputs: Any, inputs: Mapping[str, Any]) -> Points:
        """Return the points of one place, without padding, for given outputs and inputs."""
        if place == OUTPUT_EMBEDDINGS:
            return Points(self.model.get_output_embeddings().weight, None)
        if place == HEAD_INPUT:
            return self._head_points(inputs)
        states = outputs.hidden_states
        if place == LAST:
            layers = [states[-1]]
        else:
            layers = list(states[1:]) if place == ALL else [states[int(i)] for i in place]
        return _tokens(layers, self._mask(inputs))

    def _head_points(self, inputs: Mapping[str, Any]) -> Points:
        entered = self._entered
        if entered is None:
            raise RuntimeError(
                f"where='head_input' is not available, since {type(self.model).__name__} did not "
                "call its last linear layer; choose 'last', 'all' or a list of layers"
            )
        if entered.ndim == 2:
            return Points(entered, torch.arange(len(entered), device=entered.device))
        if is_classifier(self.model):  # a decoder: it classifies every token, then picks the last
            states = _LAST_TOKEN(entered, self._not_padding(inputs, entered))
            return Points(states, torch.arange(len(states), device=states.device))
        return _tokens([entered], self._mask(inputs))

    def _mask(self, inputs: Mapping[str, Any]) -> Tensor | None:
        """Return the mask of the tokens that are not padding, or None if all of them count.

        In a decoder with token labels, these are the tokens whose label is not -100.
        """
        if self.model.config.is_encoder_decoder:
            labels = inputs.get("labels")
            if "decoder_attention_mask" in inputs:
                return inputs["decoder_attention_mask"]
            if labels is not None and labels.ndim == 2:
                return labels != -100
        if "attention_mask" in inputs:
            return inputs["attention_mask"]
        return self._mask_from_ids(inputs)

    def _mask_from_ids(self, inputs: Mapping[str, Any]) -> Tensor | None:
        padding = self.model.config.get_text_config().pad_token_id
        if padding is None or "input_ids" not in inputs:
            return None
        return inputs["input_ids"] != padding

    def _not_padding(self, inputs: Mapping[str, Any], states: Tensor) -> Tensor:
        """Return the mask with which decoders of transformers search for the last token."""
        found = self._mask_from_ids(inputs)
        return _ones(states) if found is None else found.long()


def _are_layers(where: Any) -> bool:
    return (
        isinstance(where, Sequence)
        and not isinstance(where, str)
        and len(where) > 0
        and all(isinstance(i, Integral) and not isinstance(i, bool) for i in where)
    )


def _layers(where: Sequence[int], model: Any) -> tuple[int, ...]:
    n_layers = model.config.get_text_config().num_hidden_layers
    wrong = [i for i in where if not -n_layers - 1 <= i <= n_layers]
    if wrong:
        raise ValueError(
            f"where={list(where)!r}: {type(model).__name__} has the hidden states 0 (the input of "
            f"the first layer) to {n_layers}, not {wrong[0]}"
        )
    return tuple(sorted({int(i) % (n_layers + 1) for i in where}))


def _ones(states: Tensor) -> Tensor:
    return torch.ones(states.shape[:2], dtype=torch.long, device=states.device)


def _tokens(layers: Sequence[Tensor], mask: Tensor | None) -> Points:
    """Select the tokens of all layers, each (b, t, d), where the mask (b, t) is not 0."""
    mask = _ones(layers[0]) if mask is None else mask.reshape(-1, mask.shape[-1])
    kept = mask.flatten().nonzero().squeeze(1)
    rows = (kept // mask.shape[1]).repeat(len(layers))
    return Points(torch.cat([layer.flatten(0, 1)[kept] for layer in layers]), rows)
