"""Checkpoints of transformers that exports write: the network, its tokenizer and its code."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from isoadapt._utils.files import TOKENIZER_FILES
from isoadapt.adapters import Affine
from isoadapt.encoders._backbone import Backbone, eval_copy
from isoadapt.encoders._classifier_head import applies_sigmoid
from isoadapt.encoders._folder import base_folder, read_object, tokenizer_folder, transformer_folder
from isoadapt.interop._reference import SERVE
from isoadapt.interop._sentence_files import write_json
from isoadapt.interop._served import Served

_SENTENCE = re.compile(
    r"(modules|sentence_[\w-]+_config|config_sentence_transformers)\.json"
    r"|\d+_\w+/(config\.json|model\.safetensors)"
)


def network_of(backbone: Backbone, logits: Affine | None = None) -> Any:
    """Return a shallow copy of a model, with the logits of a map of its head's input if given."""
    replace: dict[torch.nn.Module, torch.nn.Module] = {}
    if logits is not None:
        old, new = cast(torch.nn.Linear, backbone.head), as_linear(logits)
        if old.bias is None and not np.allclose(logits.offset, 0):
            raise ValueError(
                f"the head of {type(backbone.model).__name__} has no bias, but this adapter needs "
                f"one (largest entry {np.abs(logits.offset).max():.3g}): export an adapter that "
                "leaves the logits as they are, such as LogitPreservingWhitening; or "
                f"{SERVE}"
            )
        new.bias = None if old.bias is None else new.bias
        replace[old] = new
    network = eval_copy(backbone.model, replace)
    config = network.config = copy.deepcopy(network.config)  # save_pretrained changes it
    if config.num_labels == 1 and applies_sigmoid(backbone):
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    return network


def as_linear(map_: Affine) -> torch.nn.Linear:
    """Return an affine map as a layer in float32."""
    layer = torch.nn.Linear(map_.matrix.shape[1], map_.n_features_out, device="meta")
    for name, values in (("weight", map_.matrix), ("bias", map_.offset)):
        tensor = torch.tensor(values, dtype=torch.float32)
        setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
    return layer


def write_checkpoint(
    target: Path,
    network: Any,
    served: Served,
    tokenizer: dict[str, Any],
    *,
    sentence: bool = False,
) -> bool:
    """Write a network, its tokenizer with some settings, and its code; return whether it has any.

    If wanted, the files of sentence-transformers are copied too.
    """
    source, own = tokenizer_folder(cast(Path, served.folder)), served.opened.backbone.tokenizer
    network.save_pretrained(target)
    files = set(own.vocab_files_names.values())  # may include rarer names
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        copied = name in files or TOKENIZER_FILES.fullmatch(name)
        if path.is_file() and (copied or (sentence and _SENTENCE.fullmatch(name))):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / name)
    if any(getattr(own, name) != value for name, value in tokenizer.items()):
        settings = target / "tokenizer_config.json"
        write_json(settings, read_object(settings) | tokenizer)
    return _copy_code(cast(Path, served.folder), target, served.parts.trust_remote_code)


def _copy_code(source: Path, target: Path, trusted: bool) -> bool:
    """Copy the code that a written checkpoint names; return whether it names any that may run.

    Code that may not run is not named either, since the folder is checked without it.
    """
    files = (target / "config.json", target / "tokenizer_config.json")
    named = [file for file in files if "auto_map" in read_object(file)]
    if not trusted:
        for file in named:
            write_json(file, {k: v for k, v in read_object(file).items() if k != "auto_map"})
        return False
    for folder in (transformer_folder(base_folder(source) or source), tokenizer_folder(source)):
        for code in folder.glob("*.py") if named else ():
            shutil.copyfile(code, target / code.name)
    return bool(named)
