"""The modules of a sentence-transformers folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from isoadapt.encoders._pooling import Columns, Normalize, Pooling, width_after
from isoadapt.encoders._sentence import MODE_OF_KEY, MODEL_FILE, settings_for_empty_texts
from isoadapt.encoders._tokenization import stand_in

_TYPE = "sentence_transformers.models"  # read by all versions of the library
_NORM_EPS = 1e-5  # of its LayerNorm module, where it cannot be set


@dataclass(frozen=True)
class Module:
    """A module that follows the transformer: its class, its settings and its weights."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


def pooling_modules(pooling: Pooling, width: int) -> Iterator[Module]:
    """Yield the modules of a pooling of hidden states (B, T, width)."""
    settings: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": True}
    if pooling.modes == tuple(mode for mode in MODE_OF_KEY.values() if mode in pooling.modes):
        settings |= {key: mode in pooling.modes for key, mode in MODE_OF_KEY.items()}
    else:  # another order, which versions before 6 do not know
        settings["pooling_mode"] = list(pooling.modes)
    yield Module("Pooling", settings)
    columns = width * len(pooling.modes)
    for layer, activation in pairwise((*pooling.steps, nn.Identity())):
        if isinstance(layer, nn.Linear):
            yield _dense(layer.weight, layer.bias, activation)
        elif isinstance(layer, nn.LayerNorm):
            yield _layer_norm(layer, activation)
        elif isinstance(layer, Normalize):
            yield Module("Normalize")
        elif isinstance(layer, Columns):
            yield _dense(torch.eye(width_after(layer, columns), columns), None, nn.Identity())
        columns = width_after(layer, columns)


def _dense(weight: Tensor, bias: Tensor | None, activation: nn.Module) -> Module:
    config = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias is not None,
        "activation_function": f"{type(activation).__module__}.{type(activation).__name__}",
    }
    weights = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    return Module("Dense", config, weights)


def _layer_norm(layer: nn.LayerNorm, activation: nn.Module) -> Module:
    if layer.eps != _NORM_EPS or not isinstance(activation, nn.Identity):
        raise ValueError(
            f"the LayerNorm in front of the head has eps={layer.eps} and is followed by "
            f"{type(activation).__name__}, but sentence-transformers only has one with "
            f"eps={_NORM_EPS} that is followed by no activation"
        )
    (width,) = layer.normalized_shape
    given = ((layer.weight, torch.ones(width)), (layer.bias, torch.zeros(width)))
    weight, bias = (default if own is None else own for own, default in given)
    return Module("LayerNorm", {"dimension": width}, {"norm.weight": weight, "norm.bias": bias})


def write_modules(folder: Path, modules: Sequence[Module]) -> None:
    """Write the list of modules, and a subfolder for each module after the transformer."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{_TYPE}.Transformer"}]
    for number, module in enumerate(modules, start=1):
        path = f"{number}_{module.kind}"
        listed.append(
            {"idx": number, "name": str(number), "path": path, "type": f"{_TYPE}.{module.kind}"}
        )
        (folder / path).mkdir()
        write_json(folder / path / "config.json", module.config)
        if module.weights:
            weights = {
                name: weight.detach().float().cpu().clone().contiguous()
                for name, weight in module.weights.items()
            }
            save_file(weights, folder / path / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "modules.json", listed)


def write_settings(folder: Path, max_length: int | None, own: Any, tokenizer: Any) -> None:
    """Write the length of texts, what empty ones become, and prompts and similarity in `own`."""
    settings: dict[str, Any] = {} if max_length is None else {"max_seq_length": max_length}
    if token := stand_in(tokenizer):
        settings |= settings_for_empty_texts(token, blank=bool(stand_in(tokenizer, " ")))
    write_json(folder / "sentence_bert_config.json", settings)
    kept = {
        "prompts": own.get("prompts") or {},
        "default_prompt_name": None,
        "similarity_fn_name": own.get("similarity_fn_name") or "cosine",
    }
    write_json(folder / MODEL_FILE, kept)


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
