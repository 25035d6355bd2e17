"""Vectors of a readout and logits of its classifier, as a module of sentence-transformers.

isoadapt wrote this file. It loads the model, the tokenizer and readout.* of its folder.
"""

import json
import shutil
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from safetensors.torch import load_file
from torch.nn.functional import linear, normalize

GIVEN: ContextVar[torch.Tensor] = ContextVar("GIVEN")  # what enters another model's layers


class ReadoutTransformer(torch.nn.Module):
    """A transformer with an affine map of its pooled states, and of another model's vectors."""

    save_in_root = True

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        hub = {key: options.get(key) for key in ("token", "revision", "local_files_only")}
        hub["cache_dir"] = options.get("cache_folder")
        file = Path(transformers.utils.cached_file(name, "readout.json", **hub)).absolute()
        weights = load_file(transformers.utils.cached_file(name, "readout.safetensors", **hub))
        self.settings, self.folder = json.loads(file.read_text("utf-8")), file.parent
        hub["trust_remote_code"] = options.get("trust_remote_code", False)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, **hub)
        self.max_seq_length, self.given = self.tokenizer.model_max_length, (name, options)
        load = getattr(transformers, self.settings["model"]).from_pretrained
        self.model = load(name, **hub | (options.get("model_kwargs") or {}))
        if path := self.settings["head"]:  # the model then gives the head's input as its logits
            self.head = self.model.get_submodule(path)
            self.model.set_submodule(path, torch.nn.Identity())
        for key in [key for key in weights if "." not in key]:
            self.register_buffer(key, weights.pop(key))
        self.layers = last_layers(self.settings["aligned"], weights) if weights else None

    @classmethod
    def load(cls, model_name_or_path: str, **options: Any) -> Self:
        """Load a folder, or a repository of the Hub."""
        return cls(model_name_or_path, options).eval().requires_grad_(False)

    def __reduce__(self) -> Any:
        """Let other processes load the folder, as hooks of transformers cannot be pickled."""
        return type(self), self.given

    def save(self, output_path: str, **options: Any) -> None:
        """Copy the folder, whose weights are not trained."""
        shutil.copytree(self.folder, output_path, dirs_exist_ok=True)

    def get_embedding_dimension(self: Any) -> int:
        """Return the number of columns of the vectors."""
        return len(self.matrix)

    def preprocess(self, inputs: list[str], prompt: str | None = None, **options: Any) -> Any:
        """Tokenise texts; one without tokens is replaced by the text of a special token."""
        texts = [(prompt or "") + text for text in inputs]
        if empty := self.settings["empty"]:
            texts = [text if self.tokenizer.tokenize(text) else empty for text in texts]
        self.tokenizer.model_max_length = self.max_seq_length
        return dict(self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))

    def forward(self: Any, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add sentence_embedding (B, d) and, of a classifier, logits (B, C) from one pass."""
        mask, settings, dtype = features["attention_mask"], self.settings, self.matrix.dtype
        inputs = {name: features[name] for name in settings["inputs"]}
        output = self.model(**inputs, output_hidden_states=True, return_dict=True)
        states = getattr(output, "encoder_hidden_states", None) or output.hidden_states
        columns = [output.logits.to(dtype)] if settings["head_input"] else []
        columns += [pooled(mode, states[i].to(dtype), mask) for mode, i in settings["pooled"]]
        if other := settings["aligned"]:  # vectors of another model
            read = torch.cat([states[i] for i in other["states"]], dim=2).to(dtype)
            token = GIVEN.set(linear(read, self.align_matrix, self.align_offset))
            inputs = {name: features[name] for name in other["inputs"]}
            inputs["inputs_embeds"] = read.new_zeros(*mask.shape, other["width"])  # replaced
            last = self.layers(**inputs).last_hidden_state
            GIVEN.reset(token)
            columns.append(normalize(torch.cat([pooled(m, last, mask) for m in other["modes"]], 1)))
        vectors = linear(torch.cat(columns, dim=1) - self.centre, self.matrix, self.offset)
        features["sentence_embedding"] = normalize(vectors) if settings["normalize"] else vectors
        return features | {"logits": self.head(output.logits)} if settings["head"] else features


def pooled(mode: str, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Pool the states (B, T, d) of tokens."""
    if mode in ("cls", "lasttoken"):
        place = mask.argmax(1) if mode == "cls" else mask.shape[1] - 1 - mask.flip(1).argmax(1)
        return states[torch.arange(len(mask), device=mask.device), place]
    if mode == "max":
        return states.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(dim=1)
    weights = (mask * mask.cumsum(dim=1) if mode == "weightedmean" else mask).to(states.dtype)
    total, size = torch.einsum("btd,bt->bd", states, weights), weights.sum(dim=1, keepdim=True)
    return total / (size.sqrt() if mode == "mean_sqrt_len_tokens" else size)


def last_layers(settings: Any, weights: dict[str, torch.Tensor]) -> Any:
    """Build the last layers of a model of transformers from their weights; their input is GIVEN."""

    def enter(layer: torch.nn.Module, args: Any, kw: dict[str, Any]) -> tuple[Any, Any]:
        return ((GIVEN.get(), *args[1:]), kw) if args else ((), kw | {"hidden_states": GIVEN.get()})

    kind = getattr(transformers, settings["model"])
    with torch.device("meta"):
        model = kind(kind.config_class.from_dict(settings["config"] | {"use_cache": False}))
        model.set_input_embeddings(torch.nn.Embedding(1, settings["width"]))
    layers = model.get_submodule(settings["layers"])[-settings["n_layers"] :]
    layers[0].register_forward_pre_hook(enter, with_kwargs=True)
    model.set_submodule(settings["layers"], layers)
    model.pooler, model.config.num_hidden_layers = torch.nn.Identity(), len(layers)
    for name, values in weights.items():
        place, _, leaf = name.removeprefix("layers.").rpartition(".")
        owner = model.get_submodule(place)
        setattr(owner, leaf, torch.nn.Parameter(values) if leaf in owner._parameters else values)
    return model
