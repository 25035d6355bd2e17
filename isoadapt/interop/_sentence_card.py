"""The model card of a folder for sentence-transformers and transformers, in Markdown."""

import json
import os
from collections.abc import Sequence

from isoadapt.interop._card import HUB_NAME, inline, short_name, versions
from isoadapt.interop._pipeline import Parts
from isoadapt.interop._sentence_check import Check
from isoadapt.interop._sentence_files import Module

_REFERENCE = """\
## What to expect

The reference case of isoadapt is a MiniLM that was fine-tuned on CoLA, with a
LogitPreservingWhitening that was fitted to CoLA's training texts without labels. On the test set of
STS-B, Spearman's correlation of the cosines with the scores rose from .29 to .71, and no prediction
changed. The encoder before fine-tuning gives .82, so it is the better choice for similarity where
it is available. These figures are not those of this model: measure on texts of your own.

The vectors are those of single texts. A classifier of pairs of texts shares no vector between both
uses: its predictions need the pair, similarity needs each text alone."""


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
    chain = " → ".join(["Transformer", *(module.kind for module in modules)])
    sections = [
        _front_matter(base, check.logits is not None),
        f"# {inline(short_name(base))} with {adapter}",
        f"A model of sentence-transformers whose vectors of width {width} were adapted by "
        f"isoadapt's {adapter}. It needs no isoadapt.",
        f"- Base model: {inline(short_name(base))}\n"
        f"- Vectors before the adapter: {inline(vectors)}\n"
        f"- Modules: {chain}\n"
        f"- Maximum length: {'no limit' if max_length is None else f'{max_length} tokens'}",
        f"## Vectors\n\n```python\n{_vectors(name)}\n```",
        "" if check.logits is None else _classification(name, classifier_kept),
        "## Check\n\nBefore the folder was written, it was loaded with both libraries' own "
        f"loaders, and {check.n_texts} texts were compared with encoder and adapter in isoadapt. "
        f"Largest differences: {check}.",
        _REFERENCE,
        "## Versions\n\n" + versions("sentence-transformers", "transformers"),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(base: str, classifies: bool) -> str:
    tags = ["sentence-transformers", "sentence-similarity", "isoadapt"]
    tags += ["text-classification"] if classifies else []
    lines = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    lines += [f"- {tag}" for tag in tags]
    if HUB_NAME.fullmatch(base) and not os.path.exists(base):
        lines.append(f"base_model: {json.dumps(base)}")
    return "\n".join(["---", *lines, "---"])


def _vectors(name: str) -> str:
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
