"""The modules of a sentence-transformers folder, and the comparison of a written folder."""

import copy
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats
from isoadapt.encoders._models import quiet
from isoadapt.encoders._pooling import Columns, Normalize, Pooling, width_after
from isoadapt.encoders._sentence import MODE_OF_KEY

_TYPE = "sentence_transformers.models"  # read by all versions of the library
_NORM_EPS = 1e-5  # of its LayerNorm module, where it cannot be set
_SENTENCE = "It was far, and then the road ran on under the trees by a river."
_SIZES = (1, 3, 8, 20)  # tokens of the texts made of random tokens
_BEYOND = 8  # tokens of the longest text beyond the maximum length
_UNLIMITED, _LONGEST = 40, 600  # tokens: where there is no maximum length, and at most
_ROUNDING = 1e-6  # of float32 vectors over all layers of an encoder, relative to their length
_LEAST = 1e-5  # difference of cosines and of relative logits that is always taken for rounding
_WRONG = 1e-2  # a difference of cosines or, relative to the largest, of logits beyond rounding


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


def affine_module(map_: Affine) -> Module:
    """Return the module of an affine map, in float32."""
    weight = torch.tensor(map_.matrix, dtype=torch.float32)
    return _dense(weight, torch.tensor(map_.offset, dtype=torch.float32), nn.Identity())


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


def write_settings(folder: Path, pooling: Pooling, max_length: int | None, own: Any) -> None:
    """Write the length and the case of texts, and the prompts and the similarity in `own`."""
    settings: dict[str, Any] = {"do_lower_case": pooling.lowercase}
    if max_length is not None:
        settings["max_seq_length"] = max_length
    write_json(folder / "sentence_bert_config.json", settings)
    kept = {
        "prompts": own.get("prompts") or {},
        "default_prompt_name": None,
        "similarity_fn_name": own.get("similarity_fn_name") or "cosine",
    }
    write_json(folder / "config_sentence_transformers.json", kept)


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


class Expected(NamedTuple):
    """What a folder must give for some texts."""

    vectors: Floats  # (n, d)
    logits: Floats | None  # (n, C); None if there is no classifier
    max_length: int | None  # in tokens; None if there is no limit
    amplification: float  # factor by which the adapter increases relative differences


class Check(NamedTuple):
    """The largest differences on a number of texts, alone and in a padded batch."""

    n_texts: int
    cosines: float  # between the texts' vectors, and of each vector with the expected one
    logits: float | None  # relative to the largest; None if there is no classifier
    limit: float  # of both, from the rounding of float32

    @property
    def exceeds(self) -> bool:
        """Whether a difference is larger than rounding explains."""
        return max(self.cosines, self.logits or 0.0) > self.limit

    def __str__(self) -> str:
        found = f"cosines {self.cosines:.1e}"
        return found if self.logits is None else f"{found}, logits {self.logits:.1e} (relative)"


def probe_texts(tokenizer: Any, max_length: int | None) -> list[str]:
    """Return texts of several lengths, most of random tokens, one longer than `max_length`."""
    tokenizer = copy.deepcopy(tokenizer)  # it stores the truncation of its last call
    special = {*tokenizer.all_special_ids}
    ids = [number for number in range(len(tokenizer)) if number not in special]
    longest = min(_LONGEST, _UNLIMITED if max_length is None else max_length + _BEYOND)
    rng = np.random.default_rng(0)
    found = [_SENTENCE]
    for size in (*_SIZES, longest):
        text = tokenizer.decode(rng.choice(ids, size).tolist()).strip()
        if tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]:
            found.append(text)
    return found


def check_written(folder: Path, library: ModuleType, texts: list[str], expected: Expected) -> Check:
    """Load a folder as its users do, and compare the vectors and logits of texts."""
    with quiet(), torch.random.fork_rng(devices=[]):
        model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        if expected.max_length not in (None, model.max_seq_length):
            raise ValueError(
                f"sentence-transformers {library.__version__} reads max_seq_length="
                f"{model.max_seq_length} from the written folder instead of {expected.max_length}"
            )
        vectors = [model.encode(part, show_progress_bar=False) for part in _batches(texts)]
        found = np.concatenate(vectors).astype(np.float64)
        limit = max(2 * _ROUNDING * expected.amplification, _LEAST)  # two vectors per cosine
        cosines = _cosines(found, _with_padded(expected.vectors), limit)
        logits = None
        if expected.logits is not None:
            logits = _logits(_classify(folder, texts), _with_padded(expected.logits), limit)
    return Check(len(texts), cosines, logits, limit)


def _batches(texts: list[str]) -> list[list[str]]:
    """Return batches with each text alone, and one with all but the last, which is the longest."""
    return [*([text] for text in texts), texts[:-1]]


def _with_padded(rows: Floats) -> Floats:
    """Return what is expected of the batches."""
    return np.concatenate([rows, rows[:-1]])


def _failure(what: str) -> ValueError:
    return ValueError(
        f"the {what}, so no folder is written: sentence-transformers cannot compute the vectors "
        "of this architecture (padding changes the vectors of some), or the adapter amplifies "
        "rounding, which more shrinkage prevents; serve it with isoadapt.AdaptedEncoder instead"
    )


@torch.inference_mode()
def _classify(folder: Path, texts: list[str]) -> Floats:
    """Compute the logits of the classifier for the batches."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True
    ).eval()
    names = inspect.signature(model.forward).parameters  # some tokenizers give more
    found = []
    for part in _batches(texts):
        tokens = tokenizer(part, padding=True, truncation=True, return_tensors="pt")
        taken = {name: values for name, values in tokens.items() if name in names}
        found.append(model(**taken).logits.numpy())
    return np.concatenate(found).astype(np.float64)


def _logits(found: Floats, expected: Floats, limit: float) -> float:
    """Return the largest relative difference of logits; raise if a prediction differs."""
    scale = np.abs(expected).max()
    difference = float(np.abs(found - expected).max() / scale)
    if not difference <= _WRONG:
        raise _failure(f"logits from the written folder differ by {difference:.3g}")
    if _best_differs(found, expected, limit * scale):
        raise _failure("predictions from the written folder differ from those of the pipeline")
    return difference


def _cosines(found: Floats, expected: Floats, limit: float) -> float:
    """Return the largest difference of cosines; raise if a nearest neighbour differs."""
    difference = float("inf")
    if found.shape == expected.shape:
        a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (found, expected))
        old, new = b @ b.T, a @ a.T
        difference = float(max(np.abs(new - old).max(), np.abs(1 - (a * b).sum(axis=1)).max()))
    if not difference <= _WRONG:  # NaN if there is no length to divide by
        raise _failure(f"cosines from the written folder differ by {difference:.3g}")
    texts = np.arange(len(old)) % ((len(old) + 1) // 2)  # the padded batch repeats all but one
    for cosines in (old, new):
        cosines[texts[:, None] == texts] = -np.inf
    if _best_differs(new, old, limit):
        raise _failure("nearest neighbours of texts from the written folder differ")
    return difference


def _best_differs(found: Floats, expected: Floats, tie: float) -> bool:
    """Return whether the largest entry of a row is another one, by more than a tie."""
    chosen = np.take_along_axis(expected, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    return bool((expected.max(axis=1) - chosen > tie).any())
