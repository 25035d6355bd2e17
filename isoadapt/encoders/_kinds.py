"""What a checkpoint holds, by its configuration and by the names and shapes of its weights."""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from isoadapt.encoders._backbone import Shapes, encoder_class, find_last_linear, fits_classifier
from isoadapt.encoders._folder import (
    base_folder,
    fingerprint,
    read_adapter,
    read_object,
    transformer_folder,
    weight_files,
)

CLASSIFIER = "AutoModelForSequenceClassification"
_OTHER_HEAD = re.compile("For(TokenClassification|QuestionAnswering|MultipleChoice)$")
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def holds_classifier(folder: Path) -> bool:
    """Return whether a checkpoint is a classifier, by its class or, without one, its weights."""
    adapter, base = read_adapter(folder), base_folder(folder)
    if adapter is not None and base is not None:
        return adapter.get("task_type") == "SEQ_CLS" or holds_classifier(base)
    place = transformer_folder(folder)
    classes = _classes(place)
    if any("ForSequenceClassification" in name for name in classes):
        return True
    return _weights_are_of_classifier(place, classes, fingerprint(folder))


def _classes(folder: Path) -> tuple[str, ...]:
    """Return the names of classes in ``config.json``."""
    names = read_object(folder / "config.json").get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


@lru_cache(maxsize=64)
def _weights_are_of_classifier(folder: Path, classes: tuple[str, ...], state: Any) -> bool:
    """Return whether weights are a classifier's, unless `classes` name a head of another task."""
    import transformers

    if any(map(_OTHER_HEAD.search, classes)):
        return False
    with suppress(Exception):  # loading reports the error
        config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
        number = saved_labels(folder, config)
        config.num_labels = number or config.num_labels
        # Multiple choice has one output, and a classifier of tokens can have the same weights.
        tags = any(str(name).startswith(("B-", "I-")) for name in config.id2label.values())
        if not tags and number != 1:
            return fits_classifier(saved_shapes(weight_files(folder)), config)
    return False


def check_task(folder: Path) -> None:
    """Raise ValueError if the last layer of a checkpoint is for another task than classification.

    Its weights can have the names and shapes of a classifier of texts.
    """
    classes = _classes(folder)
    other = next(filter(_OTHER_HEAD.search, classes), None)
    if other and not any("ForSequenceClassification" in name for name in classes):
        raise ValueError(
            f"{folder / 'config.json'} names the class {other}, which does not classify texts: "
            "pass a model for sequence classification, or use its hidden states, "
            "TransformerEncoder(model, pooling='mean')"
        )


def model_class(folder: Path, head: bool) -> str:
    """Return the name of the class that loads the model, for an encoder without decoder its own."""
    if head:
        return CLASSIFIER
    encoder = encoder_class(read_object(folder / "config.json").get("model_type"))
    names = saved_shapes(weight_files(folder)) if encoder else ()
    alone = "" if any("decoder" in name.split(".") for name in names) else encoder
    return alone or "AutoModel"


def without_weights(kind: str, config: Any, code: bool = False) -> Any:
    """Build a model of class `kind` on the device "meta"."""
    import transformers

    cls = getattr(transformers, kind)
    with torch.device("meta"):
        if not kind.startswith("Auto"):
            return cls(config)
        return cls.from_config(config, trust_remote_code=code)


def saved_shapes(files: Iterable[Path], prefix: str = "") -> Shapes:
    """Return the shapes of the weights in safetensors files by their names without `prefix`."""
    from safetensors import safe_open

    shapes = {}
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                shapes[name.removeprefix(prefix)] = tuple(file.get_slice(name).get_shape())
    return shapes


def saved_labels(
    folder: Path, config: Any, adapter: Shapes | None = None, code: bool = False
) -> int | None:
    """Return the number of labels of the saved head if no configuration has it, else None."""
    entries = read_object(folder / "config.json")
    if not adapter and ("id2label" in entries or "num_labels" in entries):  # PEFT has neither
        return None
    model = without_weights(CLASSIFIER, config, code)
    head = find_last_linear(model)
    name = next(name for name, module in model.named_modules() if module is head)
    shape = (adapter or saved_shapes(weight_files(folder))).get(f"{name}.weight")
    return None if shape is None else shape[0]
