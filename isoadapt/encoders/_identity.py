"""What identifies a checkpoint and its vectors: by the bytes of files, or by the loaded weights.

- :func:`checkpoint_identity` hashes the files, without loading a model. The cache
  uses it. A checkpoint that was saved again by another version of transformers is another.
- :func:`vector_source` hashes weights, configuration and tokens of a loaded model. Adapter folders
  record it. Names of files, shards, data types of files and versions do not matter.

Both add the settings of an encoder that affect its vectors. Whether the files have changed since
they were read is told by :func:`~isoadapt.encoders._folder.fingerprint`. All digests are stored on
disk, so they must stay as they are.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._folder import base_folder, checkpoint_files, fingerprint
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._pooling import (
    READOUT,
    LayersPooling,
    Normalize,
    PoolingSetting,
    choose_pooling,
    needs_head,
    several_layers,
)
from isoadapt.encoders._sentence import sentence_pooling
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import model_inputs

if TYPE_CHECKING:
    from isoadapt.encoders._transformer import TransformerEncoder

# Version of the encoding procedure, which is part of every key. Raise it with each change of
# tokenisation, batching or pooling that changes vectors, so that caches do not return vectors that
# the current code would not compute.
VECTORS_VERSION = 3

_KEY_BYTES = 20
_COARSEST_CLOCK_NS = 2 * 10**9  # the coarsest resolution of file times
_DIGESTS: dict[Hashable, bytes] = {}
# Entries of a configuration that do not affect vectors: origin, labels, training, data type and
# form of the outputs, and the entries that this package adds.
_INCIDENTAL = re.compile(
    r"_?name_or_path|architectures|auto_map|transformers_version|(torch_)?dtype|problem_type"
    r"|id2label|label2id|num_labels|finetuning_task|task_specific_params|isoadapt_.*|.*drop.*"
    r"|sentence_transformers|sbert_ce_.*"
    r"|initializer_.*|gradient_checkpointing|tie_word_embeddings|use_cache|return_dict|output_.*"
    r"|_?attn_implementation.*|torchscript"
)
_PROBE = Texts(["The Café's 3 DOGS ran far away, didn't they?"])


class Identity(NamedTuple):
    """A digest of everything that determines vectors, and the state of the files that were read.

    Two identities of one encoder are equal only if nothing changed in between. A change that was
    undone also makes them different.
    """

    digest: bytes
    state: Hashable = None

    def with_settings(self, *settings: object) -> "Identity":
        """Return the identity under further settings, whose ``repr`` describes them fully."""
        digest = hashlib.sha256(self.digest + repr(settings).encode()).digest()
        return Identity(digest, self.state)


def checkpoint_identity(folder: Path) -> Identity:
    """Identify a checkpoint by the content of its files; a copy elsewhere has the same digest.

    A process reads the files once, and again when their sizes or times change.
    """
    state = fingerprint(folder)
    if state in _DIGESTS:
        return Identity(_DIGESTS[state], state)
    started = time.time_ns()
    whole = hashlib.sha256()
    for file in checkpoint_files(folder):
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
        whole.update(repr((file.relative_to(folder).as_posix(), digest)).encode())
    base = base_folder(folder)
    if base is not None:
        whole.update(checkpoint_identity(base).digest)
    changed = max((max(times) for *_, times in state[1:]), default=0)
    if started - changed > _COARSEST_CLOCK_NS:  # otherwise a later change could have the same time
        _DIGESTS[state] = whole.digest()
    return Identity(whole.digest(), state)


def vectors_identity(folder: Path, setting: PoolingSetting, layer: int) -> Identity:
    """Identify the vectors of a checkpoint under a pooling by its files, without loading it."""
    head = needs_head(setting) or holds_classifier(folder)
    read, parts = partial(sentence_pooling, folder, head), several_layers(setting)
    pooling: Any = parts or choose_pooling(setting, layer, head, read)
    if head and (parts == READOUT or (parts and needs_head(setting))):
        pooling = (parts, own) if (own := read()) else parts  # the texts of a CrossEncoder
    return checkpoint_identity(folder).with_settings(pooling, layer)


def row_keys(identity: Identity, texts: Texts) -> list[bytes]:
    """Return a key of 20 bytes for each text, which also depends on the digest and the version."""
    version = VECTORS_VERSION.to_bytes(4, "little")
    start = hashlib.blake2b(version + identity.digest, digest_size=_KEY_BYTES)

    def key(*parts: bytes) -> bytes:
        row = start.copy()
        row.update(b"".join(len(part).to_bytes(8, "little") + part for part in parts))
        return row.digest()

    columns = [texts.first] if texts.second is None else [texts.first, texts.second]
    return [key(*map(str.encode, row)) for row in zip(*columns, strict=True)]


class VectorSource(NamedTuple):
    """The checkpoint that vectors come from, and the settings they were computed with."""

    # SHA-256 of the network in front of the classifier's last layer (weights and configuration) and
    # of the tokenizer's ids for one sentence. Names of files, shards and copies do not matter.
    checkpoint: str
    # Data type of the weights that the digest was computed from.
    dtype: Literal["float64", "float32", "bfloat16", "float16"]
    # Settings of the encoder that affect vectors; None if they are not known.
    kind: str | None

    def is_of(self, backbone: Backbone) -> bool:
        """Return whether a model, its weights rounded to ``dtype``, has the same digest."""
        return _digest(backbone, getattr(torch, self.dtype)) == self.checkpoint


def vector_source(encoder: "TransformerEncoder") -> VectorSource:
    """Identify the vectors of an encoder.

    Computation in float16 or bfloat16, backend, device, batch size and length do not matter. A live
    model is identified by its current weights.
    """
    live = not isinstance(encoder.model, str | os.PathLike)
    exact = encoder if live else encoder._variant(dtype="float32")
    backbone = exact._backbone()
    dtype = str(backbone.model.dtype).removeprefix("torch.")
    digest = _digest(backbone, backbone.model.dtype)
    return VectorSource(digest, dtype, _kind(encoder, backbone))  # type: ignore[arg-type]


def describe_vectors(encoder: "TransformerEncoder") -> str:
    """Say in words how an encoder makes one vector of a text; the model is not run."""
    return encoder.open().describe()


def _kind(encoder: "TransformerEncoder", backbone: Backbone) -> str:
    """Describe the settings that affect vectors, such that equal settings give equal strings."""
    pooling, n = encoder._pooling(backbone), backbone.n_layers
    if isinstance(pooling, LayersPooling):
        return f"pooling={pooling.parts}"
    settings = [f"pooling={'+'.join(pooling.modes)!r}"]
    if not pooling.is_head_input:
        layer = backbone.hidden_state(encoder.layer) % (n + 1)
        settings.append(f"layer={-1 if layer == n else layer}")
    settings += map(_step_kind, pooling.steps)
    return ", ".join(settings)


def _step_kind(step: nn.Module) -> str:
    """Describe a step of the pooling, with a digest of its weights."""
    if isinstance(step, Normalize):
        return "normalize"
    weights = b"".join(map(_tensor_digest, step.state_dict().values()))
    return f"{step}={hashlib.sha256(weights).hexdigest()[:16]}" if weights else str(step)


def recorded_pooling(kind: str | None) -> PoolingSetting:
    """Return the parameter ``pooling`` for vectors of a recorded kind of several layers, or "auto".

    The columns of "readout" are recorded as the list of their layers.
    """
    if not re.fullmatch(r"pooling=\(\(.*\)", kind or ""):
        return "auto"
    parts = re.findall(r"\('(\w+)', (-?\d+)\)", str(kind))
    return [(mode, int(layer)) for mode, layer in parts]


def _digest(backbone: Backbone, dtype: torch.dtype) -> str:
    """Hash what determines vectors: weights rounded to `dtype`, configuration and tokens.

    The tokens are those of one sentence. Only the numbers of layers are used from the names of
    weights, because versions of transformers name weights differently.
    """
    names = {module: name for name, module in backbone.model.named_modules()}
    head = None if backbone.head is None else f"{names[backbone.head]}."
    digests = sorted(
        (_numbers(name), _tensor_digest(tensor.to(dtype)))
        for name, tensor in backbone.model.state_dict().items()
        if tensor.is_floating_point() and _affects_vectors(name, head)
    )
    tokens = model_inputs(backbone, _PROBE, None)
    whole = hashlib.sha256(repr(digests).encode())
    whole.update(json.dumps(_settings(backbone.model.config), sort_keys=True).encode())
    whole.update(repr(tokens.flat["input_ids"].tolist()).encode())
    return whole.hexdigest()


def _affects_vectors(name: str, head: str | None) -> bool:
    """Return whether a weight affects vectors; a pooler does not if there is no head."""
    return "pooler" not in name.split(".") if head is None else not name.startswith(head)


def _numbers(name: str) -> tuple[int, ...]:
    """Return the numbers in the name of a weight, such as (3,) for ``layer.3.output.bias``."""
    return tuple(int(part) for part in name.split(".") if part.isdecimal())


def _settings(config: Any) -> dict[str, Any]:
    """Return the entries of a configuration that affect vectors and are not the class's defaults.

    Defaults are left out because versions of transformers add such entries.
    """
    try:
        defaults = json.loads(type(config)().to_json_string(use_diff=False))
    except Exception:  # a class that comes with a checkpoint may need arguments
        defaults = {}
    return _differences(json.loads(config.to_json_string(use_diff=False)), defaults)


def _differences(entries: dict[str, Any], defaults: Any) -> dict[str, Any]:
    """Return the entries that are not defaults, at every depth, without incidental ones."""
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
    """Hash the shape and the float32 values of a tensor."""
    values = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    digest = hashlib.sha256(repr(values.shape).encode())
    digest.update(values.data)
    return digest.digest()
