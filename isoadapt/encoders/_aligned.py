"""Vectors of another encoder: its last layers, run on hidden states that a linear map aligns."""

import hashlib
import json
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isoadapt.encoders._pooling import MODES

_GIVEN: ContextVar[Tensor] = ContextVar("_GIVEN")  # states that enter the first layer of a tail
_UNUSED = 1e-6  # entry of a unit vector whose square is below rounding in float32


@dataclass(frozen=True, eq=False, repr=False)
class Aligned:
    """The last layers of another encoder, the linear map in front of them, and its pooling."""

    model_class: str  # of transformers
    config: str  # JSON, of all layers
    n_layers: int
    weights: dict[str, NDArray[Any]]  # by name, in float32; no word embeddings
    inputs: tuple[str, ...]  # that its layers read besides the states
    modes: tuple[str, ...]  # poolings of its last states
    states: tuple[int, ...]  # numbers of the hidden states of this encoder that are mapped
    matrix: NDArray[np.float32]  # (d_teacher, len(states) * d)
    offset: NDArray[np.float32]  # (d_teacher,)

    @property
    def width(self) -> int:
        """Number of columns of the vectors."""
        return len(self.offset) * len(self.modes)

    @cached_property
    def digest(self) -> str:
        """Digest of all that determines the vectors."""
        whole = hashlib.sha256()
        for part in fields(self):
            values = getattr(self, part.name)
            arrays = values if isinstance(values, dict) else {part.name: values}
            for name, value in sorted(arrays.items()):
                content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
                whole.update(f"{name} {len(content)} ".encode() + content)
        return whole.hexdigest()

    def __repr__(self) -> str:
        return f"Aligned(n_layers={self.n_layers}, digest={self.digest[:16]!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}


@lru_cache(maxsize=2)
def built(aligned: Aligned, device: torch.device) -> "AlignedModule":
    """Return the module of aligned vectors on a device, which is kept."""
    return AlignedModule(aligned).eval().requires_grad_(False).to(device)


class AlignedModule(nn.Module):
    """Hidden states of an encoder to vectors of another one, scaled to unit length."""

    def __init__(self, aligned: Aligned) -> None:
        super().__init__()
        self.aligned, self.tail = aligned, Tail.loaded(aligned)
        self.map = nn.Linear(aligned.matrix.shape[1], len(aligned.offset), device="meta")
        self.map.weight = nn.Parameter(torch.from_numpy(aligned.matrix))
        self.map.bias = nn.Parameter(torch.from_numpy(aligned.offset))

    def forward(self, states: tuple[Tensor, ...], batch: dict[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"]
        columns = [states[i][:, : mask.shape[1]].float() for i in self.aligned.states]
        inputs = {name: batch[name] for name in self.aligned.inputs if name in batch}
        last = self.tail(self.map(torch.cat(columns, dim=-1)), inputs)
        vectors = torch.cat([MODES[mode](last, mask) for mode in self.aligned.modes], dim=1)
        # Units that the teacher does not use are made constant, or a readout would amplify them.
        return nn.functional.hardshrink(nn.functional.normalize(vectors, dim=1), _UNUSED)


class Tail(nn.Module):
    """The last layers of a model, which run on given states; the model is changed."""

    def __init__(self, model: Any, n_layers: int) -> None:
        super().__init__()
        place, layers = layer_list(model)
        last = layers[len(layers) - n_layers :]
        model.set_submodule(place, last)
        model.set_input_embeddings(nn.Embedding(1, model.get_input_embeddings().weight.shape[1]))
        model.pooler = nn.Identity()  # not used, and not in every checkpoint
        last[0].register_forward_pre_hook(_replace_states, with_kwargs=True)
        self.model, self.place = model, place

    @classmethod
    def loaded(cls, aligned: Aligned) -> "Tail":
        """Build the layers without those before, and load their weights."""
        kind = model_class(aligned.model_class)
        config = kind.config_class.from_dict(json.loads(aligned.config))
        with torch.device("meta"):
            model = kind(config)
        tail = cls(model, aligned.n_layers)
        config.num_hidden_layers, config.use_cache = aligned.n_layers, False
        for name, values in aligned.weights.items():
            place, _, leaf = name.rpartition(".")
            module, tensor = tail.model.get_submodule(place), torch.from_numpy(values)
            if getattr(module, leaf).shape != tensor.shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}")
            if leaf in module._parameters:
                module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[leaf] = tensor
        return tail

    def forward(self, states: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Compute the model's last states (B, T, d) from those before the layers."""
        width = self.model.get_input_embeddings().weight.shape[1]
        token = _GIVEN.set(states)
        try:
            replaced = states.new_zeros(*states.shape[:2], width)
            return self.model(inputs_embeds=replaced, **inputs).last_hidden_state
        finally:
            _GIVEN.reset(token)


def _replace_states(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Replace the input of a layer by the given states, as a hook."""
    if args:
        return (_GIVEN.get(), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": _GIVEN.get()}


def layer_list(model: Any) -> tuple[str, nn.ModuleList]:
    """Return the name of the list of a model's layers, and the list; raise ValueError."""
    n = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == n:
            return name, module
    raise ValueError(f"the layers of {type(model).__name__} are not in one list")


def model_class(name: str) -> Any:
    """Return a class of transformers that computes states of texts, or raise ValueError."""
    import transformers
    from transformers.models.auto import modeling_auto as auto, tokenization_auto

    texts = {*tokenization_auto.TOKENIZER_MAPPING_NAMES}
    texts |= {*auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES}
    if name not in {auto.MODEL_MAPPING_NAMES.get(kind) for kind in texts}:
        raise ValueError(f"{name} is not a class that AutoModel of transformers gives for texts")
    return getattr(transformers, name)
