"""The service of examples/serve_onnx.py against torch: label and vector of each text.

The reference takes two passes over one folder, `transformers.pipeline` for the labels and
sentence-transformers for the vectors. Both must give the same labels and vectors.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import cosine_similarity
from transformers import pipeline

from benchmarks._data import Floats, distinct_texts, shared_folder
from benchmarks._places import ROOT
from benchmarks.speed._harness import Comparison, compare
from isoadapt import AdaptedEncoder, LogitPreservingWhitening
from isoadapt.interop import export_onnx, to_sentence_transformer

Way = Callable[[Sequence[Any]], tuple[Sequence[Any], Floats]]


def run(quick: bool) -> Iterator[Comparison]:
    """Compare on sentences of CoLA, one a call and all in one call."""
    checkpoint = shared_folder() / "models" / "cola-minilm"
    texts = distinct_texts("cola", "dev")[: 8 if quick else 512]
    model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(texts)
    with TemporaryDirectory() as folder:
        service: Way = _service(export_onnx(model, Path(folder, "onnx", "model.onnx")).parent)
        to_sentence_transformer(model, checkpoint, Path(folder, "torch"))
        two_passes = _two_passes(str(Path(folder, "torch")))
        labels, vectors = zip(*(way(texts[:32]) for way in (service, two_passes)), strict=True)
        np.testing.assert_array_equal(*labels)
        # As `isoadapt check` compares vectors, since maps amplify rounding.
        np.testing.assert_allclose(*map(cosine_similarity, vectors), atol=1e-5)
        one_by_one = [[text] for text in texts]
        for calls, requests, repeats in ("one text", one_by_one, 1), ("all texts", [texts], 3):
            yield compare(
                f"labels and vectors of onnxruntime, {calls} a call, against pipeline and "
                "sentence-transformers, two passes",
                lambda requests=requests: [service(each) for each in requests],
                lambda requests=requests: [two_passes(each) for each in requests],
                repeats=1 if quick else repeats,
                target=2.0,
                n=len(texts),
                d=384,
            )


def _service(folder: Path) -> Way:
    """Return the class that the example shows, for one folder."""
    source = (ROOT / "examples" / "serve_onnx.py").read_text("utf-8").split("\n# %%")[0]
    names: dict[str, Any] = {}
    exec(compile(source, "serve_onnx.py", "exec"), names)
    service: Way = names["Service"](folder)
    return service


def _two_passes(folder: str) -> Way:
    classify = pipeline("text-classification", model=folder, device="cpu")
    encoder = SentenceTransformer(folder, device="cpu")

    def answer(texts: Sequence[Any]) -> tuple[list[str], Floats]:
        labels = [each["label"] for each in classify(list(texts), batch_size=32)]
        return labels, encoder.encode(list(texts))

    return answer
