"""The files of exported folders: network, tokenizer, code, and modules of sentence-transformers."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor, nn

from isoadapt._utils.files import TOKENIZER_FILES
from isoadapt.encoders._aligned import Aligned, Tail
from isoadapt.encoders._folder import base_folder, read_object, tokenizer_folder, transformer_folder
from isoadapt.encoders._kinds import model_class
from isoadapt.encoders._library import READOUT_CODE, READOUT_KIND, READOUT_SOURCE
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import OF_STATES, Columns, Normalize, Pooling, width_after
from isoadapt.encoders._sentence import MODE_OF_KEY, MODEL_FILE, settings_for_empty_texts
from isoadapt.encoders._tokenization import stand_in
from isoadapt.interop._reference import Reference
from isoadapt.interop._served import Served

_SENTENCE = re.compile(
    r"(modules|sentence_[\w-]+_config|config_sentence_transformers)\.json"
    r"|\d+_\w+/(config\.json|model\.safetensors)"
)
_TYPE = "sentence_transformers.models"  # read by all versions of the library
_NORM_EPS = 1e-5  # of its LayerNorm module, where it cannot be set


def write_checkpoint(
    target: Path, served: Served, network: Any, changes: dict[str, Any], *, sentence: bool = False
) -> bool:
    """Write network, changed tokenizer and code, and return whether the code may run."""
    source, tokenizer = cast(Path, served.folder), served.opened.backbone.tokenizer
    folders = (transformer_folder(base_folder(source) or source), tokenizer_folder(source))
    own = set(tokenizer.vocab_files_names.values())  # may include rarer names
    network.save_pretrained(target)
    for path in sorted(folders[1].rglob("*")):
        name = path.relative_to(folders[1]).as_posix()
        copied = name in own or TOKENIZER_FILES.fullmatch(name)
        if path.is_file() and (copied or (sentence and _SENTENCE.fullmatch(name))):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / name)
    files = (target / "config.json", target / "tokenizer_config.json")
    if any(getattr(tokenizer, name) != value for name, value in changes.items()):
        write_json(files[1], read_object(files[1]) | changes)
    named = [file for file in files if "auto_map" in read_object(file)]
    trusted = served.parts.trust_remote_code
    if not trusted:  # code that may not run is not named, since the folder is checked without it
        for file in named:
            write_json(file, {k: v for k, v in read_object(file).items() if k != "auto_map"})
    for code in (code for folder in folders for code in folder.glob("*.py") if trusted and named):
        shutil.copyfile(code, target / code.name)
    return trusted and bool(named)


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


def write_sentence(
    folder: Path, modules: Sequence[Module], served: Served, source: Reference, normalize: bool
) -> None:
    """Write what sentence-transformers reads: the modules or, without any, a readout."""
    if modules:
        _write_modules(folder, modules, served.opened)
    else:
        _write_readout(folder, served, source, normalize)
    own = read_object(cast(Path, served.folder) / MODEL_FILE)
    kept = {
        "prompts": own.get("prompts") or {},
        "default_prompt_name": None,
        "similarity_fn_name": own.get("similarity_fn_name") or "cosine",
    }
    write_json(folder / MODEL_FILE, kept)


def _write_modules(folder: Path, modules: Sequence[Module], opened: Opened) -> None:
    """Write modules, each after the transformer in a subfolder, and settings for the texts."""
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
    max_length, tokenizer = opened.length(), opened.backbone.tokenizer
    settings: dict[str, Any] = {} if max_length is None else {"max_seq_length": max_length}
    if token := stand_in(tokenizer):
        settings |= settings_for_empty_texts(token, blank=bool(stand_in(tokenizer, " ")))
    write_json(folder / "sentence_bert_config.json", settings)


def _write_readout(folder: Path, served: Served, source: Reference, normalize: bool) -> None:
    """Write the file of code that computes a readout of any columns, its settings and weights."""
    opened, map_ = served.opened, served.map_
    backbone, pooling, aligned = opened.backbone, opened.pooling, opened.pooling.aligned
    inputs = backbone.inputs & {"input_ids", "token_type_ids", "attention_mask"}
    names = {module: name for name, module in backbone.model.named_modules()}
    settings: dict[str, Any] = {"head": names.get(backbone.head), "inputs": sorted(inputs)}
    settings["model"] = model_class(folder, backbone.head is not None)
    settings |= {"head_input": pooling.begins_with_head_input, "normalize": normalize}
    settings["pooled"] = [part for part in pooling.parts if part[0] in OF_STATES]
    settings |= {"empty": stand_in(backbone.tokenizer), "aligned": None}
    centre = source.vectors.mean(axis=0).astype(np.float32)  # around it, float32 is enough
    arrays = {"centre": centre, "matrix": map_.matrix.astype(np.float32)}
    arrays["offset"] = map_(centre[None])[0].astype(np.float32)
    if aligned is not None:
        settings["aligned"] = _aligned_settings(aligned, inputs | {"attention_mask"})
        arrays |= {"align_matrix": aligned.matrix, "align_offset": aligned.offset}
        arrays |= {f"layers.{name}": values for name, values in aligned.weights.items()}
    shutil.copyfile(READOUT_SOURCE, folder / READOUT_CODE)
    write_json(folder / "readout.json", settings)
    save_arrays(arrays, folder / "readout.safetensors", metadata={"format": "pt"})
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": READOUT_KIND}])


def _aligned_settings(aligned: Aligned, inputs: frozenset[str]) -> dict[str, Any]:
    """Return what the last layers of another model are built from, and what they read."""
    tail, config = Tail.loaded(aligned), json.loads(aligned.config)
    config.pop("_name_or_path", None)  # a folder of this machine
    settings = {"model": aligned.model_class, "config": config, "layers": tail.place}
    settings |= {name: getattr(aligned, name) for name in ("n_layers", "states", "modes")}
    width = tail.model.get_input_embeddings().embedding_dim
    return settings | {"width": width, "inputs": sorted(inputs & {*aligned.inputs})}


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
