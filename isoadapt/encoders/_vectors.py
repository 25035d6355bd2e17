"""What the vectors of an encoder are, in a form that can be saved with an adapter and compared."""

import hashlib
import json
import os
import re
from typing import Any, Literal, NamedTuple

import torch
from sklearn.base import clone

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import tokenize
from isoadapt.encoders._models import loaded_backbone
from isoadapt.encoders._pooling import HEAD_INPUT
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._transformer import TransformerEncoder

HEAD_VECTORS = f"pooling={HEAD_INPUT!r}"
# Entries of a configuration that decide no vector: origin, labels, training, type and form of the
# outputs, and what this package adds.
_INCIDENTAL = re.compile(
    r"_?name_or_path|architectures|auto_map|transformers_version|(torch_)?dtype|problem_type"
    r"|id2label|label2id|num_labels|finetuning_task|task_specific_params|isoadapt_.*|.*drop.*"
    r"|initializer_.*|gradient_checkpointing|tie_word_embeddings|use_cache|return_dict|output_.*"
    r"|_?attn_implementation.*|torchscript"
)
_PROBE = Texts(["The Café's 3 DOGS ran far away, didn't they?"])


class VectorSource(NamedTuple):
    """The checkpoint that vectors come from, and which of its vectors they are.

    Attributes
    ----------
    checkpoint : str
        SHA-256 of the network in front of the classifier's last layer (weights and
        configuration), and of the tokenizer's ids for one sentence. File names, shards, copies
        and the last layer do not matter.
    dtype : str
        Type of the weights that the digest was computed from.
    kind : str or None
        The settings of the encoder that decide which vectors it gives; None if not known.
    """

    checkpoint: str
    dtype: Literal["float64", "float32", "bfloat16", "float16"]
    kind: str | None

    def is_of(self, backbone: Backbone) -> bool:
        """Whether a model, its weights rounded to ``dtype``, has the same digest."""
        return _digest(backbone, getattr(torch, self.dtype)) == self.checkpoint


def vector_source(encoder: TransformerEncoder) -> VectorSource:
    """Identify the vectors of an encoder.

    Parameters
    ----------
    encoder : TransformerEncoder
        Any encoder. Its computing in float16 or bfloat16, its backend, device, batches and length
        do not matter; a live model counts by its weights as they are now.

    Returns
    -------
    VectorSource
        Their source.

    Raises
    ------
    OSError
        If the checkpoint cannot be loaded, and was not loaded before in this process.
    ValueError
        If the parameters of the encoder do not fit its model.
    """
    encoder._validate_params()
    backbone = _exact_backbone(encoder)
    dtype = str(backbone.model.dtype).removeprefix("torch.")
    digest = _digest(backbone, backbone.model.dtype)
    return VectorSource(digest, dtype, _kind(encoder, backbone))  # type: ignore[arg-type]


def _exact_backbone(encoder: TransformerEncoder) -> Backbone:
    """Give the model of an encoder with its weights in float32, or a live model as it is."""
    if not isinstance(encoder.model, str | os.PathLike):
        return encoder._backbone()
    try:
        return clone(encoder).set_params(backend="torch", dtype="float32")._backbone()
    except OSError:
        backbone = loaded_backbone(encoder.model)
        if backbone is None:
            raise
        return backbone


def _kind(encoder: TransformerEncoder, backbone: Backbone) -> str:
    """Name the settings that decide which vectors a model gives, each in one spelling only."""
    pooling, n = encoder._pooling(backbone), backbone.n_layers
    settings = [f"pooling={'+'.join(pooling.modes)!r}"]
    if pooling.modes != (HEAD_INPUT,):
        layer = encoder._layer(backbone) % (n + 1)
        settings.append(f"layer={-1 if layer == n else layer}")
    if encoder.dtype == "int8":
        settings.append("dtype='int8'")
    settings += [name for name in ("normalize", "lowercase") if getattr(pooling, name)]
    return ", ".join(settings)


def _digest(backbone: Backbone, dtype: torch.dtype) -> str:
    """Hash what vectors follow from: weights rounded to `dtype`, configuration, tokens.

    Of the names of the weights, which differ between versions of transformers, only the numbers of
    the layers count. The tokens are those of one sentence.
    """
    names = {module: name for name, module in backbone.model.named_modules()}
    head = None if backbone.head is None else f"{names[backbone.head]}."
    digests = sorted(
        (_numbers(name), _tensor_digest(tensor.to(dtype)))
        for name, tensor in backbone.model.state_dict().items()
        if tensor.is_floating_point() and _counts(name, head)
    )
    tokens = tokenize(
        backbone.tokenizer,
        _PROBE,
        max_length=None,
        names=frozenset({"input_ids"}),
        counts_positions=True,
    )
    whole = hashlib.sha256(repr(digests).encode())
    whole.update(json.dumps(_settings(backbone.model.config), sort_keys=True).encode())
    whole.update(repr(tokens.flat["input_ids"].tolist()).encode())
    return whole.hexdigest()


def _counts(name: str, head: str | None) -> bool:
    """Whether vectors follow from a weight: without a head, a pooler is random if not saved."""
    return "pooler" not in name.split(".") if head is None else not name.startswith(head)


def _numbers(name: str) -> tuple[int, ...]:
    """Give the numbers in the name of a weight, such as (3,) for ``layer.3.output.bias``."""
    return tuple(int(part) for part in name.split(".") if part.isdecimal())


def _settings(config: Any) -> dict[str, Any]:
    """Give the entries of a configuration that decide vectors and differ from the class's defaults.

    Entries with their default value are left out because versions of transformers add such ones.
    """
    try:
        defaults = json.loads(type(config)().to_json_string(use_diff=False))
    except Exception:  # code that comes with a checkpoint decides what its constructor needs
        defaults = {}
    return _differences(json.loads(config.to_json_string(use_diff=False)), defaults)


def _differences(entries: dict[str, Any], defaults: Any) -> dict[str, Any]:
    """Give the entries that are not the defaults, at every depth, without incidental ones."""
    defaults = defaults if isinstance(defaults, dict) else {}
    found = {}
    for name, value in entries.items():
        if _INCIDENTAL.fullmatch(name) or (name in defaults and value == defaults[name]):
            continue
        if isinstance(value, dict):
            value = _differences(value, defaults.get(name))
        if value != {}:
            found[name] = value
    return found


def _tensor_digest(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    digest = hashlib.sha256(repr(values.shape).encode())
    digest.update(values.data)
    return digest.digest()
