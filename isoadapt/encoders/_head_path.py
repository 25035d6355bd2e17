"""The layers between the last hidden states of a classifier and the input of its head."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import model_inputs, to_device
from isoadapt.encoders._network import eval_copy
from isoadapt.encoders._pooling import MODES, Pooling
from isoadapt.encoders._texts import Texts

_PROBE = Texts(["It was far.", "It was far, and then the road ran on under the trees by a river."])
_ACTIVATIONS = (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
_TOLERANCE = 1e-5  # relative to the largest entry


@dataclass(frozen=True)
class HeadPath:
    """The pooling of the last hidden states, and the layers that follow it."""

    pooling: str  # a mode of Pooling
    width: int  # of the hidden states
    layers: tuple[nn.Module, ...]  # Linear or LayerNorm, and activations without parameters


class _Call(NamedTuple):
    """One call of a layer whose output holds one vector for each text."""

    layer: nn.Module
    given: Tensor  # (B, d)
    result: Tensor  # (B, d')


@torch.inference_mode()
def head_path(backbone: Backbone) -> HeadPath:
    """Find how the input of a classifier's head is computed from the last hidden states.

    The layers are recorded in a forward pass of two texts. The pooling and the activations are
    those that give the values that the next layer receives. ValueError is raised if there are none.
    """
    hidden, calls, target, mask = _record(backbone)
    layers: list[nn.Module] = []
    while True:
        for mode in MODES:
            if _equal(Pooling((mode,))(hidden, mask), target):
                return HeadPath(mode, hidden.shape[-1], tuple(layers))
        step = _last_step(calls, target)
        if step is None:
            raise ValueError(
                "it is not a pooling of hidden states followed by Linear and LayerNorm layers with "
                f"the activations {', '.join(cls.__name__ for cls in _ACTIVATIONS)}"
            )
        number, activation = step
        layers = [calls[number].layer, activation, *layers]
        calls, target = calls[:number], calls[number].given


def _record(backbone: Backbone) -> tuple[Tensor, list[_Call], Tensor, Tensor]:
    """Return the last hidden states, the calls of layers, the head's input and the mask."""
    tokens = model_inputs(backbone, _PROBE, backbone.default_length)
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
            calls.append(_Call(module, given[0], output))

    network.base_model.register_forward_hook(keep_states)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.register_forward_hook(keep_call)
    inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
    vectors = network(**inputs).logits
    return states[-1], calls, vectors, batch["attention_mask"]


def _last_step(calls: list[_Call], target: Tensor) -> tuple[int, nn.Module] | None:
    """Return the number of the last call and the activation that give `target`, if any."""
    for number in reversed(range(len(calls))):
        for activation in _ACTIVATIONS:
            if _equal(activation()(calls[number].result), target):
                return number, activation()
    return None


def _equal(values: Tensor, target: Tensor) -> bool:
    """Return whether two tensors have one shape and the same values up to rounding."""
    if values.shape != target.shape:
        return False
    return bool((values - target).abs().max() <= _TOLERANCE * target.abs().max())
