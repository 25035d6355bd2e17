"""What a checkpoint holds, by its configuration and by the names and shapes of its weights."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isoadapt.encoders._folder import (
    PEFT_PREFIX,
    PEFT_WEIGHTS,
    base_folder,
    fault,
    read_adapter,
    read_object,
    transformer_folder,
    weight_files,
)

Shapes = dict[str, tuple[int, ...]]  # of weights, by name
CLASSIFIES = "ForSequenceClassification"  # in the name of a class
_OTHER_HEAD = re.compile("For(TokenClassification|QuestionAnswering|MultipleChoice)$")
_HEAD = re.compile(r"(pre_)?classif|score\.|logits_proj\.")  # beginnings of names of weights


def holds_classifier(folder: Path) -> bool:
    """Whether a checkpoint is a classifier, by its class, or an adapter's task or else weights."""
    adapter, base = read_adapter(folder), base_folder(folder)
    if adapter is not None and base is not None:
        task = adapter.get("task_type")
        saved = {} if task else saved_shapes(folder.glob(PEFT_WEIGHTS), PEFT_PREFIX)
        return task == "SEQ_CLS" or any(map(_HEAD.match, saved)) or holds_classifier(base)
    return any(CLASSIFIES in name for name in _classes(transformer_folder(folder)))


def _classes(folder: Path) -> tuple[str, ...]:
    """Return the names of classes in ``config.json``."""
    names = read_object(folder / "config.json").get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def check_unnamed_head(folder: Path) -> None:
    """Raise ValueError for weights of a head if ``config.json`` names no class of transformers."""
    import transformers

    place = transformer_folder(base_folder(folder) or folder)
    if any(hasattr(transformers, name) for name in _classes(place)):
        return
    if found := next(filter(_HEAD.match, saved_shapes(weight_files(place))), None):
        raise ValueError(
            f"{place / 'config.json'} names no class of transformers (architectures), but there "
            f"are the weights {found}: pass TransformerEncoder(model, pooling='head_input') if "
            "they classify texts, or pooling='mean' to leave them out"
        )


def check_task(folder: Path, weights: Path) -> None:
    """Raise ValueError if the last layer, whatever its names and shapes, is for another task."""
    if (task := (read_adapter(folder) or {}).get("task_type")) in ("TOKEN_CLS", "QUESTION_ANS"):
        raise ValueError(
            f"model={str(folder)!r} is a PEFT adapter for {task}, which does not classify texts: "
            "merge it with merge_and_unload, and choose pooling='mean' for its hidden states"
        )
    classes = _classes(weights)
    other = next(filter(_OTHER_HEAD.search, classes), None)
    if other and not any(CLASSIFIES in name for name in classes):
        raise ValueError(
            f"{weights / 'config.json'} names the class {other}, which does not classify texts; "
            "choose pooling='mean' for its hidden states"
        )


def encoder_class(model_type: Any) -> str:
    """Return the name of the class for the encoder alone, such as T5EncoderModel, or ""."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    name = f"{str(MODEL_MAPPING_NAMES.get(model_type)).removesuffix('Model')}EncoderModel"
    return name if hasattr(transformers, name) else ""


def model_class(folder: Path, head: bool) -> str:
    """Return the name of the class that loads the model, for an encoder without decoder its own."""
    if head:
        return "AutoModelForSequenceClassification"
    encoder = encoder_class(read_object(folder / "config.json").get("model_type"))
    names = saved_shapes(weight_files(folder)) if encoder else ()
    alone = "" if any("decoder" in name.split(".") for name in names) else encoder
    return alone or "AutoModel"


def saved_shapes(files: Iterable[Path], prefix: str = "") -> Shapes:
    """Return the shapes of the weights in safetensors files by their names without `prefix`."""
    from safetensors import safe_open

    shapes = {}
    for path in files:
        if found := fault(path):
            raise ValueError(found)
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                shapes[name.removeprefix(prefix)] = tuple(file.get_slice(name).get_shape())
    return shapes
