"""Model cards, in Markdown: of saved adapters, and of folders for sentence-transformers."""

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isoadapt.heads import LinearHead
from isoadapt.interop._pipeline import Parts
from isoadapt.interop._reference import Check, Reference
from isoadapt.interop._sentence_files import Module

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PACKAGES = ("isoadapt", "numpy", "scikit-learn", "torch")
_EXPECTATION = """\
## What to expect

For similarity, {} is usually the better choice where it is available. Measure on texts of your own.

The vectors are those of single texts. A classifier of pairs of texts shares no vector between both
uses: its predictions need the pair, similarity needs each text alone."""


def model_card(
    parts: Parts,
    base: str | None,
    data: str | Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
    reference: Reference | None,
) -> str:
    """Describe a fitted adapter in Markdown, with the front matter of Hugging Face model cards.

    `base` is the name of its base model, and `reference` that of the encoder, if they are known.
    """
    settings = _encoder_settings(reference)
    name = " + ".join(type(adapter).__name__ for _, adapter in parts.adapters)
    kind = "An adapter" if len(parts.adapters) == 1 else "A pipeline of adapters"
    width_out = parts.adapters[-1][1].map_.n_features_out
    sections = [
        _front_matter("isoadapt", ["isoadapt", "isotropy", "embeddings"], base),
        f"# {name}" + (f" for {inline(short_name(base))}" if base else ""),
        f"{kind} of isoadapt: it maps embeddings of width {parts.first().n_features_in_} to "
        f"{width_out}. {_head(parts.last_head())}",
        f"- Base model: {inline(base or 'not given')}\n- Vectors: {settings or 'not recorded'}\n"
        f"- Data: {_data(data)}",
        _metrics(metrics or {}),
        _loading(base, settings, parts.encoder is not None),
        "## Parameters\n\n" + "\n\n".join(_parameters(parts)),
        "## Versions\n\n" + versions(),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def short_name(base: str) -> str:
    """Return a name on the Hub unchanged, and the last part of a path."""
    return base if HUB_NAME.fullmatch(base) else Path(base).name


def _front_matter(
    library: str, tags: Sequence[str], base: str | None = None, task: str | None = None
) -> str:
    """Return the front matter of Hugging Face model cards, with `base` if it is on the Hub."""
    lines = [f"library_name: {library}", *([f"pipeline_tag: {task}"] if task else []), "tags:"]
    lines += [f"- {tag}" for tag in tags]
    if base and HUB_NAME.fullmatch(base) and not os.path.exists(base):
        lines.append(f"base_model: {json.dumps(base)}")
    return "\n".join(["---", *lines, "---"])


def _head(head: LinearHead | None) -> str:
    """Describe the head in one sentence."""
    if head is None:
        return "It has no head of its own."
    if head.classes_ is None:
        return f"Its linear head predicts {len(head.coef_)} number(s)."
    classes = ", ".join(inline(label) for label in head.classes_[:20].tolist())
    if head.multi_label_:
        return f"Its head is a multi-label classifier with {len(head.coef_)} labels: {classes}."
    return f"Its linear head has {len(head.classes_)} classes: {classes}."


def _data(data: Any) -> str:
    if isinstance(data, Mapping):
        return ", ".join(f"{inline(name)} {inline(value)}" for name, value in data.items())
    return inline(data or "not given")


def _metrics(metrics: Mapping[str, Any]) -> str:
    """Return a table of the numbers in some columns, which are dicts or reports."""
    if not metrics:
        return ""
    columns = [each.to_dict() if hasattr(each, "to_dict") else each for each in metrics.values()]
    shown = [{key: float(x) for key, x in column.items() if _is_number(x)} for column in columns]
    names = dict.fromkeys(name for column in shown for name in column)
    rows = [
        ["", *metrics],
        ["---"] * (len(metrics) + 1),
        *(
            [name, *(f"{each[name]:.4g}" if name in each else "" for each in shown)]
            for name in names
        ),
    ]
    lines = [f"| {' | '.join(map(inline, row))} |" for row in rows]
    return "## Metrics\n\n" + "\n".join(lines)


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not getattr(value, "shape", ())


def _encoder_settings(reference: Reference | None) -> str:
    """Return the arguments of the encoder that a reference belongs to."""
    settings = {} if reference is None else reference.settings
    names = ("pooling", "layer", "max_length")
    return ", ".join(f"{name}={settings[name]!r}" for name in names if name in settings)


def _loading(base: str | None, settings: str, encodes: bool) -> str:
    arguments = ", ".join(filter(None, [json.dumps(base or "path/to/the/base/model"), settings]))
    code = f"""\
from isoadapt import TransformerEncoder
from isoadapt.interop import load_adapter

adapter = load_adapter("path/to/this/folder")
embeddings = TransformerEncoder({arguments}).transform(texts)
adapted = adapter.transform(embeddings)"""
    if encodes:
        code = """\
from isoadapt.interop import load_adapter

adapted = load_adapter("path/to/this/folder").transform(texts)"""
    return f"## How to load it\n\n```python\n{code}\n```"


def _parameters(parts: Parts) -> Iterator[str]:
    """List the parameters of each adapter, under its name where there are several."""
    for name, adapter in parts.adapters:
        values = adapter.get_params(deep=False)
        lines = [f"- {key}: {inline(repr(value))}" for key, value in values.items()]
        title = [f"{inline(name)}:", ""] if len(parts.adapters) > 1 else []
        yield "\n".join([*title, *lines])


def versions(*more: str) -> str:
    """List the versions of Python, of the packages used, and of some more."""
    packages = [f"- {name} {version(name)}" for name in (*_PACKAGES, *more)]
    return "\n".join([f"- Python {platform.python_version()}", *packages])


def inline(value: Any) -> str:
    """Convert a value to text on one line that does not break a Markdown table."""
    return " ".join(str(value).split()).replace("|", "\\|")


def sentence_card(
    parts: Parts,
    model: str | os.PathLike[str],
    name: str,
    vectors: str,
    modules: Sequence[Module],
    max_length: int | None,
    check: Check,
    classifier_kept: bool,
) -> str:
    """Describe a written folder of this name, with its vectors in words and the check's figures."""
    base = os.fspath(model)
    adapter = " + ".join(type(step).__name__ for _, step in parts.adapters)
    width = parts.adapters[-1][1].map_.n_features_out
    classifies = "logits" in check.differences
    chain = " → ".join(["Transformer", *(module.kind for module in modules)])
    tags = ["sentence-transformers", "sentence-similarity", "isoadapt"]
    tags += ["text-classification"] * classifies
    sections = [
        _front_matter("sentence-transformers", tags, base, "sentence-similarity"),
        f"# {inline(short_name(base))} with {adapter}",
        f"A model of sentence-transformers whose vectors of width {width} were adapted by "
        f"isoadapt's {adapter}. It needs no isoadapt.",
        f"- Base model: {inline(short_name(base))}\n"
        f"- Vectors before the adapter: {vectors}\n"
        f"- Modules: {chain}\n"
        f"- Maximum length: {'no limit' if max_length is None else f'{max_length} tokens'}",
        f"## Vectors\n\n```python\n{_encoding(name)}\n```",
        _classification(name, classifier_kept) if classifies else "",
        *_closing(parts, check, "both libraries' own loaders", "sentence-transformers"),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _closing(parts: Parts, check: Check, loaders: str, package: str) -> Iterator[str]:
    """Yield the last sections: what was compared, what to expect, and versions."""
    yield (
        f"## Check\n\nBefore the folder was written, it was loaded with {loaders}, and "
        f"{check.n_texts} texts were compared with encoder and adapter in isoadapt. "
        f"{check.sentence()} `isoadapt check` repeats this."
    )
    before = "the teacher" if parts.first()._needs_teacher else "the encoder before fine-tuning"
    yield _EXPECTATION.format(before)
    yield "## Versions\n\n" + versions(package, "transformers")


def _encoding(name: str) -> str:
    return f"""\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({json.dumps(name)})  # the path of this folder
vectors = model.encode(["The cat sat on the mat.", "A cat was sitting on a rug."])
print(model.similarity(vectors, vectors))"""


def _classification(name: str, kept: bool) -> str:
    effect = "The classifier is that of the base model, and its predictions are unchanged."
    if not kept:
        effect = (
            "The classifier includes the adapter and the head that was fitted with it. Its "
            "predictions may differ from those of the base model."
        )
    return f"## Classification\n\n{effect}\n\n```python\n{_labels(name)}\n```"


def _labels(name: str) -> str:
    return f"""\
from transformers import pipeline

classify = pipeline("text-classification", {json.dumps(name)})  # the path of this folder
print(classify("The cat sat on the mat.", truncation=True))"""


def onnx_card(parts: Parts, name: str, vectors: str, facts: Sequence[str], check: Check) -> str:
    """Describe the folder of a graph `name`, with its vectors in words and facts for a server."""
    adapter = " + ".join(type(step).__name__ for _, step in parts.adapters)
    sections = [
        _front_matter("onnx", ["onnx", "isoadapt"]),
        f"# An encoder and its {adapter} as one ONNX graph",
        "It needs onnxruntime and tokenizers, but neither torch nor isoadapt.",
        "\n".join(f"- {fact}" for fact in (f"Vectors before the adapter: {vectors}", *facts)),
        f"## Use\n\n```python\n{_onnx_code(name)}\n```",
        *_closing(parts, check, "onnxruntime and tokenizers", "onnxruntime"),
    ]
    return "\n\n".join(sections) + "\n"


def _onnx_code(name: str) -> str:
    return f"""\
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")  # in this folder
session = InferenceSession({json.dumps(name)})
rows = tokenizer.encode_batch(["The cat sat on the mat."])
tokens = {{
    "input_ids": [row.ids for row in rows],
    "attention_mask": [row.attention_mask for row in rows],
    "token_type_ids": [row.type_ids for row in rows],
}}
inputs = {{each.name: np.array(tokens[each.name], np.int64) for each in session.get_inputs()}}
names = [each.name for each in session.get_outputs()]
for name, values in zip(names, session.run(None, inputs)):
    print(name, values.shape)"""
