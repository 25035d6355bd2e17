"""What a checkpoint holds, by its configuration and by the names and shapes of its weights."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from isoadapt.encoders._backbone import (
    Shapes,
    encoder_class,
    find_last_linear,
    has_weights_of_classifier,
)
from isoadapt.encoders._folder import (
    base_folder,
    fingerprint,
    read_adapter,
    read_object,
    transformer_folder,
    weight_files,
)

CLASSIFIER = "AutoModelForSequenceClassification"
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def holds_classifier(folder: Path) -> bool:
    """Return whether a checkpoint holds a model for sequence classification.

    The class in ``architectures`` decides if it is one of transformers. Otherwise, the weights do.
    """
    adapter, base = read_adapter(folder), base_folder(folder)
    if adapter is not None and base is not None:
        return adapter.get("task_type") == "SEQ_CLS" or holds_classifier(base)
    place = transformer_folder(folder)
    names = read_object(place / "config.json").get("architectures")
    classes = tuple(map(str, names)) if isinstance(names, list) else ()
    if any("ForSequenceClassification" in name for name in classes):
        return True
    return _weights_are_of_classifier(place, classes, fingerprint(folder))


@lru_cache(maxsize=64)
def _weights_are_of_classifier(folder: Path, classes: tuple[str, ...], state: Any) -> bool:
    """Return whether weights are a classifier's, unless `classes` name one of transformers."""
    import transformers

    if not set(classes).isdisjoint(dir(transformers)):
        return False
    try:
        saved = saved_shapes(weight_files(folder))
        lost = lost_labels(folder, saved, **_LOCAL)
        config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL, **lost)
        # Neither a single output without a number of labels, which can be that of multiple choice,
        # nor tags of tokens, whose classifier has the same weights in some architectures.
        tags = any(str(name).startswith(("B-", "I-")) for name in config.id2label.values())
        if tags or lost == {"num_labels": 1}:
            return False
        return has_weights_of_classifier(saved, config)
    except Exception:  # loading reports the error
        return False


def model_class(folder: Path, head: bool) -> str:
    """Return the name of the class of transformers that loads the model in a folder.

    Of an encoder-decoder without weights for its decoder, this is the class of the encoder alone.
    """
    if head:
        return CLASSIFIER
    encoder = encoder_class(read_object(folder / "config.json").get("model_type"))
    names = saved_shapes(weight_files(folder)) if encoder else {}
    has_decoder = any("decoder" in name.split(".") for name in names)
    return encoder if encoder and not has_decoder else "AutoModel"


def without_weights(kind: str, folder: Path, **options: Any) -> Any:
    """Build a model of class `kind` on the device "meta"."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, **options)
    cls = getattr(transformers, kind)
    with torch.device("meta"):
        if not kind.startswith("Auto"):
            return cls(config)
        return cls.from_config(config, trust_remote_code=options["trust_remote_code"])


def saved_shapes(files: Iterable[Path], prefix: str = "") -> Shapes:
    """Return the shapes of the weights in safetensors files by their names without `prefix`."""
    from safetensors import safe_open

    shapes = {}
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                shapes[name.removeprefix(prefix)] = tuple(file.get_slice(name).get_shape())
    return shapes


def lost_labels(folder: Path, saved: Shapes, **options: Any) -> dict[str, int]:
    """Return the number of labels as an option if the weights have it, but no configuration."""
    if not {"id2label", "num_labels"}.isdisjoint(read_object(folder / "config.json")):
        return {}
    return label_option(saved, without_weights(CLASSIFIER, folder, **options))


def label_option(saved: Shapes, model: Any) -> dict[str, int]:
    """Return the number of labels of the saved head as an option if that of `model` differs."""
    head = find_last_linear(model)
    name = next(name for name, module in model.named_modules() if module is head)
    shape = saved.get(f"{name}.weight")
    return {} if shape is None or shape[0] == model.config.num_labels else {"num_labels": shape[0]}
