"""One graph gives labels and adapted vectors to a server without torch and isoadapt."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tokenizers import Tokenizer

from isoadapt import AdaptedEncoder, TransformerEncoder, Whitening, adapters, load_checkpoint
from isoadapt.interop import _onnx, export_onnx
from isoadapt.interop._served import Served
from tests.interop.conftest import LENGTH
from tests.interop.examples import CLASSES, ROWS, blurred, without_isoadapt
from tests.tiny_models import (
    ARCHITECTURES,
    MORE_ARCHITECTURES,
    TEXTS,
    make_model,
    make_tokenizer,
    save_model,
)

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def served(file, texts=TEXTS, n=3):
    """Outputs of the graph, by name, as a server computes them, `n` texts at a time."""
    tokenizer = Tokenizer.from_file(str(file.parent / "tokenizer.json"))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    found = []
    for start in range(0, len(texts), n):
        rows = tokenizer.encode_batch(texts[start : start + n])
        taken = {
            each.name: np.array([getattr(row, fields[each.name]) for row in rows])
            for each in session.get_inputs()
        }
        found.append(session.run(None, taken))
    return dict(zip(names, map(np.concatenate, zip(*found, strict=True)), strict=True))


def service():
    """The class of the example, as a server imports it."""
    file, names = Path(__file__).parents[2] / "examples" / "serve_onnx.py", {}
    exec(file.read_text().split("# %%")[0], names)
    return names["Service"]


def same(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def check(model, file, texts=TEXTS, n=3):
    """Vectors are those of the model; returns all outputs, and the labels."""
    found = served(file, texts, n)
    same(found["sentence_vector"], model.transform(texts))
    labels = json.loads((file.parent / "config.json").read_text())["id2label"]
    return found, [labels[str(row.argmax())] for row in found.get("logits", [])]


# torch's exporter fails on them: XLNet and BigBird subtract integers from a float, Jamba's length
# becomes a constant, and Longformer's views depend on values.
NOT_EXPORTED = ("xlnet", "big_bird", "jamba", "longformer")


class TestOutputs:
    def test_the_classifiers_own_logits(self, source, onnx):
        model = make_pipeline(source.encoder, source.adapter)
        found, labels = check(model, onnx / "model.onnx")
        same(found["logits"], source.head.outputs(source.encoder.transform(TEXTS)))
        assert labels == [f"LABEL_{label}" for label in model.predict(TEXTS)]
        assert service()(onnx)(TEXTS)[0] == labels

    @pytest.mark.filterwarnings("ignore:R² of the teacher")
    @pytest.mark.parametrize("space", ["teacher", "head"])
    def test_the_maps_of_a_readout_of_all_layers(self, source, space):
        encoder = TransformerEncoder(source.folder, pooling="readout")
        columns = encoder.transform(ROWS)
        adapter = adapters.TeacherReadout(source.head, ridge=1.0, space=space)
        model = make_pipeline(encoder, adapter.fit(columns, columns[:, -8:]))
        columns = encoder.transform(TEXTS)
        logits, _ = _onnx._logits(Served.of(model))
        same(logits(columns), model.decision_function(TEXTS))

    def test_an_adapter_of_all_layers_without_a_head_has_the_checkpoints_logits(self, source):
        encoder = TransformerEncoder(source.folder, pooling="readout", max_length=LENGTH)
        adapter = Whitening().fit(encoder.transform(ROWS))
        logits, _ = _onnx._logits(Served.of(make_pipeline(encoder, adapter)))
        expected = source.head.outputs(source.encoder.transform(TEXTS))
        same(logits(encoder.transform(TEXTS)), expected)

    def test_other_labels_with_length_and_unit_length(self, bare, tmp_path):
        """What the graph computes from vectors, and its tokenizer, without an export."""
        library = pytest.importorskip("sentence_transformers")
        modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
        parts = [modules.Transformer(str(bare)), modules.Pooling(16)]
        library.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "sentence"))
        encoder = TransformerEncoder(tmp_path / "sentence", max_length=LENGTH)
        rows = encoder.transform(ROWS)
        adapter = Whitening("pca", n_components=4).fit(rows)
        names = np.array(["zero", "two", "one"])[CLASSES]
        last = LogisticRegression().fit(adapter.transform(rows), names)
        served = Served.of(make_pipeline(encoder, adapter, last))
        logits, config = _onnx._logits(served)
        readout = _onnx._Readout(served.map_, logits, rows.mean(axis=0), normalize=True)
        vectors, logits = (each.numpy() for each in readout(torch.from_numpy(rows)))
        expected = adapter.transform(rows)
        same(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True))
        found = log_softmax(logits, axis=1)
        np.testing.assert_allclose(found, last.predict_log_proba(expected), atol=1e-4)
        assert list(config.id2label.values()) == last.classes_.tolist()
        _onnx._write_tokenizer(tmp_path, encoder.open(), pads=True)
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        ids = [each.ids for each in tokenizer.encode_batch(TEXTS)]
        options = {"padding": True, "truncation": True, "max_length": LENGTH}
        assert ids == encoder.open().backbone.tokenizer(TEXTS, **options)["input_ids"]

    @pytest.mark.slow
    @pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
    def test_architectures(self, architecture, tmp_path):
        encoder, head = load_checkpoint(save_model(tmp_path / "model", architecture))
        adapter = adapters.LogitPreservingWhitening(head).fit(blurred(encoder))
        model = make_pipeline(encoder, adapter)
        file = tmp_path / "served" / "model.onnx"
        if architecture in NOT_EXPORTED:
            with pytest.raises(ValueError, match=r"cannot be exported to ONNX .*AdaptedEncoder"):
                export_onnx(model, file)
            assert not file.parent.exists()
        else:
            check(model, export_onnx(model, file), ROWS[:4], n=1)

    def test_the_card_runs_and_needs_neither_torch_nor_isoadapt(self, onnx, monkeypatch, capsys):
        card = (onnx / "README.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        monkeypatch.chdir(onnx)
        with without_isoadapt() as patch:
            patch.setitem(sys.modules, "torch", None)
            exec(code, {})
        assert capsys.readouterr().out.splitlines() == ["sentence_vector (1, 16)", "logits (1, 3)"]


SIGMOID = {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}
KINDS = [("sigmoid", 1), ("regression", 3), ("multi_label_classification", 3), (None, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "num_labels"), KINDS)
def test_the_service_answers_as_the_model(problem, num_labels, tmp_path):
    options = {"problem_type": problem} if problem != "sigmoid" else SIGMOID
    options = options | {"num_labels": num_labels, "num_hidden_layers": 1}
    folder = save_model(tmp_path / "m", **options)
    model = AdaptedEncoder(folder, adapters.LogitPreservingWhitening()).fit(ROWS)
    expected = model.predict(TEXTS)
    answers, _ = service()(export_onnx(model, tmp_path / "served" / "model.onnx").parent)(TEXTS)
    if problem in ("regression", None):
        np.testing.assert_allclose(np.squeeze(answers), np.squeeze(expected), rtol=1e-4)
    else:
        rows = expected.reshape(len(TEXTS), -1)
        assert answers == [[f"LABEL_{number}" for number in np.flatnonzero(row)] for row in rows]


def test_what_is_no_graph(source, tmp_path, monkeypatch):
    encoder, adapter = source.encoder, source.adapter
    file = tmp_path / "served" / "model.onnx"
    flow = adapters.FlowAdapter(max_epochs=1).fit(source.rows)
    half = TransformerEncoder((make_model().half(), make_tokenizer()), pooling=encoder.pooling)
    for model, target, named in (
        (adapter, file, "needs its TransformerEncoder too"),
        (make_pipeline(encoder, adapter), tmp_path / "served", r"file=.*\.onnx"),
        (make_pipeline(encoder, flow), file, "not an affine map"),
        (make_pipeline(half, adapter), file, r"live model is in torch.float16.*model.float\(\)"),
    ):
        with pytest.raises(ValueError, match=named):
            export_onnx(model, target)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        export_onnx(make_pipeline(encoder, adapter), tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"isoadapt\[onnx\]"):
        export_onnx(make_pipeline(encoder, adapter), file)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
