"""The classifier head of a loaded model, and the layers between hidden states and this head."""

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from isoadapt._utils.containers import as_values
from isoadapt.encoders._backbone import Backbone, eval_copy
from isoadapt.encoders._batching import PAIR, explained_failure, to_device
from isoadapt.encoders._class_labels import class_labels
from isoadapt.encoders._folder import read_object
from isoadapt.encoders._pooling import MODES, Pooling
from isoadapt.encoders._sentence import ACTIVATIONS, MODEL_FILE
from isoadapt.encoders._tokenization import model_inputs
from isoadapt.heads import LinearHead

_OLD_RECORD = "sbert_ce_default_activation_function"  # in config.json
_TOLERANCE = 1e-5  # relative to the largest entry


def read_head(backbone: Backbone, y: ArrayLike | None = None) -> LinearHead:
    """Return the head of a classifier in float64, with its classes spelled as in `y`."""
    head, config = cast(nn.Linear, backbone.head), backbone.model.config
    _check_logits(backbone, head)
    state = head.state_dict()  # if add_isobn was used, its scale is included
    coef, intercept = (  # which parametrizations of torch compute
        np.zeros(len(head.weight)) if values is None else values.detach().cpu().double().numpy()
        for values in (state.get(name, getattr(head, name)) for name in ("weight", "bias"))
    )
    if config.problem_type == "multi_label_classification":
        return LinearHead(coef, intercept, class_labels(config, len(coef)), multi_label=True)
    one = config.num_labels == 1
    if config.problem_type == "regression" or (one and not applies_sigmoid(backbone)):
        return LinearHead(coef, intercept)
    if one:
        coef, intercept = (np.concatenate([-row, row]) / 2 for row in (coef, intercept))
    labels = None if y is None else np.ravel(as_values(y)).tolist()
    return LinearHead(coef, intercept, class_labels(config, len(coef), labels))


def applies_sigmoid(backbone: Backbone) -> bool:
    """Return whether a model is a CrossEncoder with a sigmoid, which is its default."""
    config, folder = backbone.model.config, backbone.folder
    file = {} if folder is None else read_object(folder / MODEL_FILE)
    entry = getattr(config, "sentence_transformers", None)
    records = [file.get("activation_fn")] if file.get("model_type") == "CrossEncoder" else []
    records += [entry.get("activation_fn")] if isinstance(entry, dict) else []
    records += [getattr(config, _OLD_RECORD)] if hasattr(config, _OLD_RECORD) else []
    named = next(filter(None, records), "Sigmoid")
    return bool(records) and str(named).rpartition(".")[2] == "Sigmoid"


@torch.inference_mode()
def _check_logits(backbone: Backbone, head: nn.Linear) -> None:
    """Check on one sentence that the head applied to the embedding gives the model's logits."""
    tokens = model_inputs(backbone, PAIR, backbone.default_length)
    inputs = backbone.accepted(to_device(tokens.batch(0, 1), backbone.model.device))
    with explained_failure(backbone, inputs):
        logits = eval_copy(backbone.model)(**inputs).logits.float()
        embedding = backbone.headless(**inputs).logits
    error = float("inf")
    if embedding.shape == (1, head.in_features):
        error = float((head(embedding).float() - logits).abs().max())
    tolerance = 1e-4 if backbone.model.dtype == torch.float32 else 2e-2
    if not error <= tolerance * max(1.0, float(logits.abs().max())):
        raise ValueError(
            f"{backbone.shown} cannot be split: its last linear layer does not give the logits of "
            f"{type(backbone.model).__name__} (difference {error:.3g}); pass a model whose logits "
            "are a linear function of the input of its head"
        )


_Call = tuple[nn.Module, Tensor, Tensor]  # a layer, and the vectors (B, d) that it took and gave


@torch.inference_mode()
def head_path(backbone: Backbone) -> tuple[Pooling, int]:
    """Return the pooling, with layers and activations, that the head reads, and states' width."""
    hidden, calls, target, mask = _record(backbone)
    steps: tuple[nn.Module, ...] = ()
    while True:
        for mode in MODES if hidden.shape[:2] == mask.shape else ():  # unlike Funnel
            if _equal(MODES[mode](hidden, mask), target):
                return Pooling((mode,), steps), hidden.shape[-1]
        pairs = ((i, last()) for i in reversed(range(len(calls))) for last in ACTIVATIONS)
        found = next((pair for pair in pairs if _equal(pair[1](calls[pair[0]][2]), target)), None)
        if found is None:
            raise ValueError(
                "it is not a pooling of hidden states followed by Linear and LayerNorm layers with "
                f"the activations {', '.join(cls.__name__ for cls in ACTIVATIONS)}"
            )
        number, last = found
        layer, target, _ = calls[number]
        steps, calls = (layer, last, *steps), calls[:number]


def _record(backbone: Backbone) -> tuple[Tensor, list[_Call], Tensor, Tensor]:
    """Return the last hidden states, the calls of layers, the head's input and the mask."""
    tokens = model_inputs(backbone, PAIR, backbone.default_length)
    # Without a padding token, a decoder reads the last position: only equal lengths are correct.
    own = backbone.model.config.pad_token_id is not None
    batch = to_device(tokens.batch(0, 2 if own else 1), backbone.model.device)
    network = eval_copy(backbone.headless)
    states: list[Tensor] = []
    calls: list[_Call] = []

    def keep_states(module: nn.Module, given: Any, output: Any) -> None:
        states.append(output[0])

    def keep_call(module: nn.Module, given: Any, output: Any) -> None:
        if output.ndim == 2 and len(output) == len(batch["input_ids"]):
            calls.append((module, given[0], output))

    network.base_model.register_forward_hook(keep_states)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.register_forward_hook(keep_call)
    inputs = backbone.accepted(batch)
    with explained_failure(backbone, batch):
        vectors = network(**inputs).logits
    return states[-1], calls, vectors, batch["attention_mask"]


def _equal(values: Tensor, target: Tensor) -> bool:
    """Return whether two tensors have one shape and the same values up to rounding."""
    if values.shape != target.shape:
        return False
    return bool((values - target).abs().max() <= _TOLERANCE * target.abs().max())
