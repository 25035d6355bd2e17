"""Model cards of saved adapters and exported folders, whose text is in the folder ``cards``."""

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from string import Template
from typing import Any

from isoadapt.encoders._library import READOUT_CODE
from isoadapt.interop._pipeline import Parts
from isoadapt.interop._reference import Check, Reference
from isoadapt.interop._served import Served
from isoadapt.interop._written import Module

_TEMPLATES = Path(__file__).parent / "cards"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PACKAGES = ("isoadapt", "numpy", "scikit-learn", "torch")


def model_card(
    parts: Parts,
    base: str | None,
    data: str | Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
    reference: Reference | None,
) -> str:
    """Describe a fitted adapter; `reference` is its encoder's, if it is known."""
    settings = {} if reference is None else reference.settings
    names = [name for name in ("pooling", "layer", "max_length") if name in settings]
    vectors = ", ".join(f"{name}={settings[name]!r}" for name in names)
    on_hub = base and _HUB_NAME.fullmatch(base) and not os.path.exists(base)
    if isinstance(data, Mapping):
        data = ", ".join(f"{name} {value}" for name, value in data.items())
    rows, imports = "rows" if parts.encoder is None else "texts", ""
    if parts.encoder is None and base:
        arguments = filter(None, [json.dumps(base), vectors])
        rows = f"TransformerEncoder({', '.join(arguments)}).transform(texts)"
        imports = "from isoadapt import TransformerEncoder\n"
    return _filled(
        "adapter.md",
        base_model=f"base_model: {json.dumps(base)}\n" if on_hub else "",
        title=_names(parts) + (f" for {_short(base)}" if base else ""),
        kind="An adapter" if len(parts.adapters) == 1 else "A pipeline of adapters",
        width_in=parts.first().n_features_in_,
        width_out=parts.adapters[-1][1].map_.n_features_out,
        head=_inline(parts.last_head() or "none"),
        base=_inline(base or "not given"),
        vectors=vectors or "not recorded",
        data=_inline(data or "not given"),
        metrics=_metrics(metrics or {}),
        imports=imports,
        rows=rows,
        parameters="\n\n".join(_parameters(parts)),
        versions=_versions(),
    )


def sentence_card(
    served: Served,
    name: str,
    reference: Reference,
    modules: Sequence[Module],
    check: Check,
    kept: bool,
    code: bool,
) -> str:
    """Describe a folder of this name for sentence-transformers, whose classifier may be kept."""
    plain, classification = json.dumps(name), ""
    shown = f"{plain}, trust_remote_code=True" if code or not modules else plain
    if "logits" in check.differences:
        effect = "includes the adapter and its head, and may predict otherwise than before"
        effect = "is unchanged, and predicts as before" if kept else effect
        empty = f"Write `{reference.stand_in}` for an empty text, which has no tokens."
        classification = _filled(
            "classification.md",
            effect=effect,
            name=shown if code else plain,
            empty=empty * bool(reference.stand_in),
        )
    return _filled(
        "sentence.md",
        more_tags="- text-classification\n" if classification else "",
        base=_short(str(served.folder)),
        width=reference.vectors.shape[1],
        modules=" → ".join(["Transformer", *([each.kind for each in modules] or [READOUT_CODE])]),
        readout="" if modules else _readout(served.opened.pooling.aligned),
        classification=classification,
        **_exported(served, shown, reference, check, "transformers", "sentence-transformers"),
    )


def _readout(aligned: Any) -> str:
    """Describe the file of code of a readout and, if there are any, a teacher's layers."""
    layers = ""
    if aligned is not None:
        path = json.loads(aligned.config).get("_name_or_path") or "another encoder"
        hub = re.search(r"models--([^/]+)", path)  # a folder in the cache of the Hub
        name = _short(hub[1].replace("--", "/") if hub else path)
        layers = _filled("layers.md", n_layers=aligned.n_layers, name=name)
    return _filled("readout.md", code=READOUT_CODE, layers=layers)


def onnx_card(
    served: Served,
    name: str,
    reference: Reference,
    check: Check,
    outputs: str,
    facts: Sequence[str],
) -> str:
    """Describe the folder of a graph `name`, with its outputs in words and facts for a server."""
    shown = json.dumps(name)
    exported = _exported(served, shown, reference, check, "tokenizers", "onnxruntime")
    return _filled("onnx.md", outputs=outputs, facts="\n- ".join(facts), **exported)


def _exported(
    served: Served, shown: str, reference: Reference, check: Check, *libraries: str
) -> dict[str, Any]:
    """Return what is said of every exported folder, which the libraries load as `shown`."""
    length = reference.settings["max_length"]
    teacher = served.parts.first()._needs_teacher
    closing = _filled(
        "closing.md",
        loaders=" and ".join(libraries),
        n_texts=check.n_texts,
        differences=check,
        limit=f"{check.limit:.1e}",
        more=" The folder differs by more, without an effect on them." if check.exceeds else "",
        before="the teacher" if teacher else "the vectors before",
        versions=_versions(*libraries, "transformers"),
    )
    return {
        "adapter": _names(served.parts),
        "name": shown,
        "vectors": served.opened.describe(),
        "version": reference.version,
        "length": "no limit" if length is None else f"{length} tokens",
        "closing": closing,
    }


def _filled(card: str, **values: Any) -> str:
    """Fill a template; parts that are empty leave no gap, and names of files may be no UTF-8."""
    text = Template((_TEMPLATES / card).read_text("utf-8")).substitute(values)
    return re.sub(r"\n{3,}", "\n\n", text).encode("utf-8", "replace").decode()


def _names(parts: Parts) -> str:
    return " + ".join(type(adapter).__name__ for _, adapter in parts.adapters)


def _short(base: str) -> str:
    """Return a name on the Hub unchanged, and the last part of a path."""
    return _inline(base if _HUB_NAME.fullmatch(base) else Path(base).name)


def _metrics(metrics: Mapping[str, Any]) -> str:
    """Return a table of the numbers in some columns, which are dicts or reports."""
    if not metrics:
        return ""
    columns = [each.to_dict() if hasattr(each, "to_dict") else each for each in metrics.values()]
    rows = [["", *metrics], ["---"] * (len(metrics) + 1)]
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name) for column in columns]
        if all(isinstance(value, Real | None) for value in values):
            rows.append([name, *("" if value is None else f"{value:.4g}" for value in values)])
    lines = [f"| {' | '.join(map(_inline, row))} |" for row in rows]
    return "## Metrics\n\n" + "\n".join(lines)


def _parameters(parts: Parts) -> Iterator[str]:
    """List the parameters of each adapter, under its name where there are several."""
    for name, adapter in parts.adapters:
        values = adapter.get_params(deep=False)
        lines = [f"- {key}: {_inline(repr(value))}" for key, value in values.items()]
        title = [f"{_inline(name)}:", ""] if len(parts.adapters) > 1 else []
        yield "\n".join([*title, *lines])


def _versions(*more: str) -> str:
    """List the versions of Python, of the packages used, and of some more."""
    packages = [f"- {name} {version(name)}" for name in dict.fromkeys((*_PACKAGES, *more))]
    return "\n".join([f"- Python {platform.python_version()}", *packages])


def _inline(value: Any) -> str:
    """Convert a value to text on one line that does not break a Markdown table."""
    return " ".join(str(value).split()).replace("|", "\\|")
