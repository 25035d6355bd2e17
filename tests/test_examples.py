"""The examples run; those of the site and the README: tests/docs."""

import asyncio
import functools
import runpy
import sys
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import joblib
import numpy as np
import pytest
from matplotlib import pyplot

from isoadapt import AdaptedEncoder, LogitPreservingWhitening, NoveltyDetector, datasets
from isoadapt.interop import export_onnx
from tests.tiny_models import TEXTS, save_model

EXAMPLES = Path(__file__).parents[1] / "examples"


# The tokenizer and the corpus are small.
@pytest.mark.filterwarnings("ignore:.*rows to judge on equal rows", "ignore:.*labels have fewer")
@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("quickstart", "after: similarity"),
        ("grid_search", "best: {"),
        ("save_and_load", "same predictions: True"),
        ("own_penalty", "lam=1: IsoScore"),
        pytest.param("classifier_search", "predictions changed: 0 of 204", marks=pytest.mark.slow),
        ("outliers", "10 nearest neighbours, adapted: AUROC"),
        ("audit", "IsoScore"),
        ("repair_and_ship", "same labels: True"),
        pytest.param("compare", "For similarity", marks=pytest.mark.slow),
        pytest.param("serve_onnx", "vectors: (2, 16)", marks=pytest.mark.slow),
        ("finetune_istar", "logged steps: 3"),
        ("anchored_finetuning", "anchored: IsoScore"),
        ("images", "predictions changed: 0 of 898"),
    ],
)
def test_examples_run(example, expected, tmp_path, monkeypatch, capsys):
    folder = save_model(tmp_path / "checkpoint", num_labels=2)
    monkeypatch.chdir(tmp_path)
    corpus = functools.partial(datasets.make_acceptability, 200, 100)
    monkeypatch.setattr(datasets, "make_acceptability", corpus)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    monkeypatch.setattr(sys, "argv", [example, str(folder)])
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    pyplot.close("all")
    assert expected in capsys.readouterr().out
    assert not [*tmp_path.glob("*/README*")]  # beside the examples, a section of the gallery


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_the_server_gives_the_vectors_and_labels_of_the_model(problem, tmp_path, monkeypatch):
    """Routes are called as functions, because fastapi and uvicorn are not installed."""
    app = SimpleNamespace(**dict.fromkeys(("get", "post", "middleware"), lambda _: lambda f: f))
    absent = {"FastAPI": lambda **_: app, "Body": lambda **_: None, "run": lambda *_, **__: None}
    absent |= {"HTTPException": ValueError, "Request": object, "Response": lambda *given: given}
    for name in ("fastapi", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**absent))
    names = {0: "rude", 1: "kind", 2: "long"}
    folder = save_model(tmp_path / "checkpoint", id2label=names, problem_type=problem)
    texts = TEXTS * 7  # more than a batch
    model = AdaptedEncoder(folder, LogitPreservingWhitening()).fit(texts)
    file = export_onnx(model, tmp_path / "served" / "model.onnx")
    vectors, predicted = model.transform_predict(texts)
    detector = NoveltyDetector().fit(vectors[::2])
    joblib.dump(detector, tmp_path / "novelty.joblib")
    line = ["server", str(file.parent), "--novelty", str(tmp_path / "novelty.joblib")]
    monkeypatch.setattr(sys, "argv", line)
    served = runpy.run_path(str(EXAMPLES / "server.py"))
    if predicted.ndim == 1:
        expected = [[label] for label in predicted]
    else:
        expected = [[names[i] for i in np.flatnonzero(row)] for row in predicted]
    answer = served["embeddings"](texts, "m", "base64", normalize=False)
    packed = [np.frombuffer(b64decode(row["embedding"]), "<f4") for row in answer["data"]]
    close = 1e-4 * np.abs(vectors).max()  # the map amplifies rounding
    np.testing.assert_allclose(packed, vectors, atol=close)
    assert [row["index"] for row in answer["data"]] == [*range(len(texts))]
    [one] = served["embeddings"](texts[0])["data"]
    np.testing.assert_allclose(one["embedding"], packed[0] / np.linalg.norm(packed[0]), atol=1e-4)
    for rows in (answer["data"], served["classify"](texts)["data"]):
        assert [row["labels"] for row in rows] == expected
        found = [[row["probabilities"][name] for name in model.classes_] for row in rows]
        np.testing.assert_allclose(found, model.predict_proba(texts), atol=1e-4)
        scores = [row["novelty"]["score"] for row in rows]
        np.testing.assert_allclose(scores, detector.score_samples(np.array(packed)), atol=1e-4)
        refused = [row["novelty"]["refused"] for row in rows]
        assert refused == [score < detector.offset_ for score in scores]
    with pytest.raises(ValueError, match="at most 512"):
        served["classify"](["a"] * 513)
    with pytest.raises(ValueError, match="not valid Unicode"):
        served["classify"]("\ud800")
    with pytest.raises(ValueError, match="dimensions=2: the vectors have"):
        served["embeddings"](texts[0], dimensions=2)
    assert served["models"]()["data"][0]["id"] == "served"
    chunked = {"content-length": "9", "transfer-encoding": "chunked"}
    for method, headers, status in (
        ("POST", {"content-length": "9"}, "served"),
        ("POST", {"content-length": "1048577"}, 413),
        ("POST", {}, 411),
        ("POST", chunked, 411),
        ("GET", {}, "served"),
    ):
        request = SimpleNamespace(method=method, headers=headers)
        reply = asyncio.run(served["limit"](request, AsyncMock(return_value=(0, "served"))))
        assert reply[1] == status
