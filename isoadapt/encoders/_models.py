"""Loading of models into one store for the whole process, and models that the user holds."""

import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.imports import import_optional
from isoadapt._utils.threads import SharedSetting, settle_threads
from isoadapt.encoders._aligned import built
from isoadapt.encoders._backbone import Backbone, find_last_linear, live_backbone, unwrapped
from isoadapt.encoders._batching import PAIR, explained_failure
from isoadapt.encoders._folder import (
    PEFT_CONFIG,
    PEFT_PREFIX,
    PEFT_WEIGHTS,
    base_folder,
    check_files,
    check_transformer,
    download,
    fingerprint,
    first_module,
    read_object,
    tokenizer_folder,
    transformer_folder,
)
from isoadapt.encoders._kinds import Shapes, check_task, model_class, saved_shapes
from isoadapt.encoders._loading import (
    check_live,
    check_use,
    check_weights,
    checked_read,
    read_config,
    use_code,
    use_options,
)
from isoadapt.encoders._sentence import live_kind
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import model_inputs

DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_LOCK = threading.RLock()  # of the stores
_CAPACITY = 2
_STORE: "OrderedDict[tuple[Any, ...], Any]" = OrderedDict()
# Initialisations of LoRA that change the base model by chance or by data, which a load cannot.
_CHANGES_BASE = ("pissa_niter", "corda", "lora_ga")


def stored(load: Callable[..., Any], folder: Path, *settings: Any) -> Any:
    """Return ``load(folder, *settings)`` from the store, calling it if necessary."""
    settle_threads()
    key = (load, fingerprint(folder), *settings)
    with _LOCK:
        if key not in _STORE:
            while len(_STORE) >= _CAPACITY:  # the least recently used model goes
                _STORE.popitem(last=False)
            _STORE[key] = load(folder, *settings)
        _STORE.move_to_end(key)
        return _STORE[key]


def release() -> None:
    """Remove all loaded models from memory.

    At most two models are kept at a time and shared by all encoders. A model that is used again is
    loaded again.

    Examples
    --------
    >>> from isoadapt.encoders import release
    >>> release()
    """
    with _LOCK:
        _STORE.clear()
        built.cache_clear()
        download.cache_clear()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def load_backbone(
    folder: Path, head: bool, dtype: torch.dtype, device: torch.device, code: bool
) -> Backbone:
    """Load model and tokenizer of a folder, with a PEFT adapter merged into its base model."""
    import transformers

    check_transformer(first_module(folder)[0], f"model={str(folder)!r}")
    base = base_folder(folder, code)
    if base is not None:
        _check_adapter(folder)
    weights, tokenizer_dir = transformer_folder(base or folder), tokenizer_folder(folder)
    check_files(weights, tokenizer_dir)
    if head:
        check_task(folder, weights)
    read = partial(checked_read, folder)
    options = use_options(code)
    kind = read("weights", lambda: model_class(weights, head))
    with quiet(), torch.random.fork_rng(devices=[]):
        config = read_config(weights, **options)
        if code:
            read("code", lambda: use_code(weights, kind))
        load = transformers.AutoTokenizer.from_pretrained
        tokenizer = read("tokenizer", partial(load, tokenizer_dir, **options))
        files = [] if base is None else [folder / PEFT_WEIGHTS]
        adapter = read("adapter", lambda: saved_shapes(files, PEFT_PREFIX))
        if head and adapter:
            config.num_labels = read("adapter", lambda: _labels_of_adapter(config, adapter, code))
        options |= {"config": config, "dtype": dtype, "use_safetensors": True}
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # reported below
        load = getattr(transformers, kind).from_pretrained
        model, report = read("weights", partial(load, weights, **options))
        check_weights(folder, model, report, adapter, head)
        model = model if base is None else _merged(model, tokenizer, folder, adapter)
    model = in_memory(model.to(device).eval())
    backbone = Backbone(model, tokenizer, find_last_linear(model) if head else None, folder)
    return check_use(backbone)


def in_memory(model: Any) -> Any:
    """Copy all weights, because loaded memory is mapped to the file, which may be overwritten."""
    for weights in chain(model.parameters(), model.buffers()):
        weights.data = weights.data.clone()
    return model


def _check_adapter(folder: Path) -> None:
    """Check that an adapter can be merged and has its weights, before the base model is loaded."""
    if not (folder / PEFT_WEIGHTS).is_file():
        raise FileNotFoundError(
            f"model={str(folder)!r} is a PEFT adapter without {PEFT_WEIGHTS} (other formats can "
            "run code and are not read)"
        )
    peft = import_optional("peft", feature=f"model={str(folder)!r}, a PEFT adapter,", extra="peft")
    config = read_object(folder / PEFT_CONFIG)
    kind, init = config.get("peft_type"), str(config.get("init_lora_weights"))
    tuner = peft.PEFT_TYPE_TO_TUNER_MAPPING.get(kind)
    if kind in peft.PEFT_TYPE_TO_CONFIG_MAPPING and not hasattr(tuner, "merge_and_unload"):
        raise ValueError(
            f"model={str(folder)!r} is a {kind} adapter, which learns prompts and changes no "
            "weights, so that it cannot be merged: pass an adapter of weights, such as LoRA, or a "
            "checkpoint that was fine-tuned as a whole"
        )
    if init.startswith(_CHANGES_BASE):
        raise ValueError(
            f"model={str(folder)!r} is a LoRA adapter with init_lora_weights={init!r}, which "
            "changed its base model in a way that no load repeats: save merge_and_unload() of the "
            "trained model or, without a classifier, convert the adapter by peft's "
            "save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        )


def _labels_of_adapter(config: Any, adapter: Shapes, code: bool) -> int:
    """Return the number of labels of the head that an adapter holds, or of its base model."""
    from transformers import AutoModelForSequenceClassification

    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=code)
    head = find_last_linear(model)
    name = next(name for name, module in model.named_modules() if module is head)
    return adapter.get(f"{name}.weight", (config.num_labels,))[0]


def _merged(model: Any, tokenizer: Any, folder: Path, adapter: Shapes) -> Any:
    """Merge an adapter into its base model, which is changed, and keep class and data type."""
    import peft

    dtype, own = model.dtype, set(model.state_dict())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = peft.PeftConfig.from_pretrained(str(folder))
            config.task_type = None  # for a task, PEFT asks for a head, which may be the base's own
            wrapped = peft.PeftModel.from_pretrained(
                model, str(folder), config=config, torch_device="cpu", autocast_adapter_dtype=False
            )
            state = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
            names = {name.removeprefix(PEFT_PREFIX) for name in state}
            # PEFT skips weights that do not fit, or leaves them random, with only a warning.
            if others := sorted((names ^ set(adapter)) - own)[:3]:
                raise ValueError(
                    f"its weights do not fit: {', '.join(others)} occur in one of the two only"
                )
            expected = _outputs(model, tokenizer, config)  # PEFT put the adapter into the model
            plain = wrapped.merge_and_unload(safe_merge=True)
            changed = (_outputs(plain, tokenizer, config) - expected).norm() / expected.norm()
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"model={str(folder)!r}: the PEFT adapter cannot be merged into its base model "
            f"({str(error).strip() or type(error).__name__}); was it trained on this base model?"
        ) from error
    if changed > torch.finfo(dtype).eps ** 0.5:
        raise ValueError(
            f"model={str(folder)!r} is a PEFT adapter that cannot be merged into its base model: "
            f"this changes the outputs by {changed:.2g} of their size, because it adapts a weight "
            "that several modules share (layer_replication, or embeddings of encoder and decoder); "
            "train it without layer_replication and on other modules than these embeddings"
        )
    for weights in plain.parameters():
        weights.data = weights.data.to(dtype)
    return plain


@torch.no_grad()
def _outputs(model: Any, tokenizer: Any, config: Any) -> torch.Tensor:
    """Compute logits or hidden states of texts, one of tokens that an adapter trained alone."""
    settings = config.to_dict()
    ids: Any = settings.get("trainable_token_indices") or settings.get("token_indices") or []
    ids = [*chain(*ids.values())] if isinstance(ids, dict) else ids
    texts = Texts([*PAIR.first, tokenizer.decode(ids)])
    backbone = live_backbone(model, tokenizer)
    network = backbone.base if backbone.head is None else backbone.model
    tokens, found = model_inputs(backbone, texts, backbone.default_length), []
    for row in range(len(texts)):
        batch = tokens.batch(row, row + 1)
        with explained_failure(backbone, batch):
            found.append(network(**backbone.accepted(batch))[0].double().flatten())
    return torch.cat(found)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Hide progress bars and messages of transformers, except errors."""
    from transformers.utils import logging as settings

    level, has_bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(level)
        if has_bars:
            settings.enable_progress_bar()


quiet = SharedSetting(_errors_only).hold  # in the whole process


def is_sentence_transformer(model: Any) -> bool:
    """Return whether a model is a SentenceTransformer, without importing the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def checked_live(model: Any, device: str | torch.device, dtype: str) -> Backbone:
    """Wrap a live model after checking its kind, device and dtype."""
    parts = model = unwrapped(model)
    sentence = model if is_sentence_transformer(model) else None
    if sentence is not None:
        first: Any = next(iter(model), None)
        check_transformer(live_kind(first), "the live SentenceTransformer")
        parts = first.auto_model, first.tokenizer
    elif not (isinstance(model, tuple) and len(model) == 2):
        raise TypeError(
            f"model is a {type(model).__name__}; pass a folder, a name on the Hugging Face Hub, a "
            "SentenceTransformer, or a tuple (model, tokenizer)"
        )
    network, tokenizer = map(unwrapped, parts)
    check_live(network, tokenizer)
    backbone = check_use(live_backbone(network, tokenizer, sentence))
    check_placed(backbone.model, device, dtype)
    return backbone


def check_placed(own: Any, device: str | torch.device, dtype: str) -> None:
    """Raise ValueError if a live model or its weight is on another device or of another dtype."""
    moves = device != "auto" and resolve_device(device).type != own.device.type
    if moves or (dtype != "auto" and DTYPES[dtype] != own.dtype):
        raise ValueError(
            f"device={str(device)!r} and dtype={dtype!r}, but the live model is on {own.device} in "
            f"{own.dtype}; move or convert it, or choose 'auto' for both"
        )
