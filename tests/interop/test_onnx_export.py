"""One graph gives labels and adapted vectors to a server without torch and isoadapt."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from isoadapt import (
    AdaptedEncoder,
    FlowAdapter,
    LogitPreservingWhitening,
    TeacherReadout,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.interop import _onnx, export_onnx, save_adapter
from tests.cli.command_line import succeed
from tests.tiny_models import (
    ARCHITECTURES,
    MORE_ARCHITECTURES,
    TEXTS,
    WORDS,
    make_model,
    make_tokenizer,
    save_model,
    save_pair,
)

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

rng = np.random.default_rng(0)
ROWS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 90)]
LABELS = rng.integers(0, 3, len(ROWS))


@pytest.fixture(scope="module")
def exported(shallow, tmp_path_factory):
    """A fitted model and its graph, in a folder of its own; do not write to it."""
    model = AdaptedEncoder(shallow, LogitPreservingWhitening()).fit(ROWS)
    return model, export_onnx(model, tmp_path_factory.mktemp("exported") / "served" / "model.onnx")


def served(file, texts, n=3):
    """Outputs of the graph, by name, as a server computes them, `n` texts at a time."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file.parent / "tokenizer.json"))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    found = []
    for start in range(0, len(texts), n):
        rows = tokenizer.encode_batch(texts[start : start + n])
        given = {
            "input_ids": [row.ids for row in rows],
            "attention_mask": [row.attention_mask for row in rows],
            "token_type_ids": [row.type_ids for row in rows],
        }
        taken = {each.name: np.array(given[each.name]) for each in session.get_inputs()}
        found.append(session.run(None, taken))
    return dict(zip(names, map(np.concatenate, zip(*found, strict=True)), strict=True))


def same(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def readout(folder, **options):
    encoder = TransformerEncoder(folder, pooling="readout")
    columns = encoder.transform(ROWS)
    adapter = TeacherReadout(load_checkpoint(folder)[1], ridge=1.0, **options)
    return make_pipeline(encoder, adapter.fit(columns, columns[:, -8:]))


@pytest.mark.filterwarnings("ignore:R² of the teacher")
class TestOutputs:
    def check(self, model, tmp_path, texts=TEXTS, n=3):
        file = tmp_path / "served" / "model.onnx"
        file = file if file.exists() else export_onnx(model, file)
        found = served(file, texts, n)
        same(found["sentence_vector"], model.transform(texts))
        labels = json.loads((file.parent / "config.json").read_text())["id2label"]
        return found, [labels[str(row.argmax())] for row in found.get("logits", [])]

    def test_the_classifiers_own_logits(self, shallow, exported):
        model, file = exported
        found, labels = self.check(model, file.parents[1])
        encoder, head = load_checkpoint(shallow)
        same(found["logits"], head.outputs(encoder.transform(TEXTS)))
        assert labels == [f"LABEL_{label}" for label in model.predict(TEXTS)]
        assert service()(file.parent)(TEXTS)[0] == labels

    @pytest.mark.parametrize("space", ["teacher", pytest.param("head", marks=pytest.mark.slow)])
    def test_the_readout_of_all_layers(self, checkpoint, tmp_path, space):
        model = readout(checkpoint, space=space)
        found, labels = self.check(model, tmp_path)
        assert found["logits"].shape == (len(TEXTS), 3)
        assert labels == [f"LABEL_{label}" for label in model.predict(TEXTS)]

    def test_a_head_of_other_labels(self, shallow, tmp_path):
        names = np.array(["zero", "two", "one"])[LABELS]
        encoder = TransformerEncoder(shallow, pooling="mean", layer=0)
        X = encoder.transform(ROWS)
        model = make_pipeline(encoder, Whitening(head="logistic").fit(X, names))
        _, labels = self.check(model, tmp_path)
        assert labels == model.predict(TEXTS).tolist()
        last = LogisticRegression().fit(model.transform(ROWS), LABELS)
        file = export_onnx(Pipeline([*model.steps, ("last", last)]), tmp_path / "l" / "model.onnx")
        logits = served(file, TEXTS)["logits"]
        np.testing.assert_allclose(
            log_softmax(logits, axis=1), last.predict_log_proba(model.transform(TEXTS)), atol=1e-4
        )

    def test_vectors_alone_of_unit_length(self, tmp_path):
        bare = save_model(tmp_path / "bare", kind="AutoModel", num_hidden_layers=1)
        encoder = TransformerEncoder(bare)
        model = make_pipeline(encoder, Whitening(n_components=4).fit(encoder.transform(ROWS)))
        file = export_onnx(model, tmp_path / "served" / "model.onnx", normalize=True)
        found, expected = served(file, TEXTS), model.transform(TEXTS)
        assert list(found) == ["sentence_vector"]
        same(found["sentence_vector"], expected / np.linalg.norm(expected, axis=1, keepdims=True))

    def test_length_and_lower_case_are_those_of_the_encoder(self, tmp_path):
        modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
        from sentence_transformers import SentenceTransformer

        bare = save_model(tmp_path / "bare", kind="AutoModel", num_hidden_layers=1)
        first = modules.Transformer(str(bare), do_lower_case=True)
        model = SentenceTransformer(modules=[first, modules.Pooling(16)], device="cpu")
        model.max_seq_length = 9
        model.save(str(tmp_path / "sentence"))
        encoder = TransformerEncoder(tmp_path / "sentence")
        adapted = make_pipeline(encoder, Whitening().fit(encoder.transform(ROWS)))
        self.check(adapted, tmp_path, [text.upper() for text in TEXTS])

    @pytest.mark.slow
    @pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
    def test_architectures(self, architecture, tmp_path):
        folder = save_model(tmp_path / "model", architecture)
        model = AdaptedEncoder(folder, LogitPreservingWhitening()).fit(ROWS)
        self.check(model, tmp_path, ROWS[:4], n=1)

    def test_the_card_runs_and_needs_neither_torch_nor_isoadapt(self, exported):
        file = exported[1]
        card = (file.parent / "README.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        hidden = "import sys; sys.modules['torch'] = sys.modules['isoadapt'] = None\n"
        done = subprocess.run(
            [sys.executable, "-I", "-c", hidden + code],
            capture_output=True,
            text=True,
            check=False,
            cwd=file.parent,
        )
        assert done.stdout.splitlines() == ["sentence_vector (1, 16)", "logits (1, 3)"], done.stderr
        assert "Labels: by id2label and problem_type" in card
        assert "cosines" in card
        assert "Empty texts" not in card

    def test_the_card_says_that_empty_texts_have_no_tokens(self, tmp_path):
        model = make_model(num_hidden_layers=1), make_tokenizer("gpt2")  # without special tokens
        adapted = AdaptedEncoder(save_pair(*model, tmp_path / "m"), LogitPreservingWhitening())
        file = export_onnx(adapted.fit(ROWS), tmp_path / "served" / "model.onnx")
        assert "Empty texts: leave them out" in (file.parent / "README.md").read_text()


def service():
    """The class of the example, as a server imports it."""
    file, names = Path(__file__).parents[2] / "examples" / "serve_onnx.py", {}
    exec(file.read_text().split("# %%")[0], names)
    return names["Service"]


@pytest.mark.parametrize(
    ("problem", "num_labels"),
    [
        ("regression", 3),
        pytest.param("multi_label_classification", 3, marks=pytest.mark.slow),
        ("sigmoid", 1),
        pytest.param("regression", 1, marks=pytest.mark.slow),
        pytest.param("multi_label_classification", 1, marks=pytest.mark.slow),
        pytest.param(None, 1, marks=pytest.mark.slow),
        pytest.param("single_label_classification", 2, marks=pytest.mark.slow),
    ],
)
def test_the_service_answers_as_the_model(problem, num_labels, tmp_path):
    options = {"problem_type": problem, "num_labels": num_labels, "num_hidden_layers": 1}
    if problem == "sigmoid":
        del options["problem_type"]
        options["sentence_transformers"] = {"activation_fn": "torch.nn.Sigmoid"}
    model = AdaptedEncoder(save_model(tmp_path / "m", **options), LogitPreservingWhitening())
    expected = model.fit(ROWS).predict(TEXTS)
    answers, _ = service()(export_onnx(model, tmp_path / "served" / "model.onnx").parent)(TEXTS)
    if problem == "regression" or (problem, num_labels) == (None, 1):
        np.testing.assert_allclose(np.squeeze(answers), np.squeeze(expected), rtol=1e-4)
    elif problem in ("multi_label_classification", "sigmoid"):
        rows = expected.reshape(len(TEXTS), -1)
        assert answers == [[f"LABEL_{number}" for number in np.flatnonzero(row)] for row in rows]
    else:
        assert answers == [f"LABEL_{label}" for label in expected]


class TestErrors:
    def refuse(self, model, file, match, error=ValueError):
        with pytest.raises(error, match=match):
            export_onnx(model, file)
        assert not file.parent.exists() or not file.exists()

    def test_what_is_no_graph(self, checkpoint, tmp_path, monkeypatch):
        encoder = TransformerEncoder(checkpoint)
        X = encoder.transform(ROWS)
        adapter, file = Whitening().fit(X), tmp_path / "served" / "model.onnx"
        self.refuse(adapter, file, r"needs the encoder too: pass a fitted AdaptedEncoder")
        self.refuse(make_pipeline(encoder, adapter), tmp_path / "served", r"must end in \.onnx")
        flow = make_pipeline(encoder, FlowAdapter(max_epochs=1).fit(X))
        self.refuse(flow, file, "not an affine map")
        narrow = make_pipeline(encoder, Whitening().fit(X[:, :5]))
        self.refuse(narrow, file, "n_features_in_=5.*width 16")
        monkeypatch.setitem(sys.modules, "onnxscript", None)
        self.refuse(make_pipeline(encoder, adapter), file, r"isoadapt\[onnx\]", ImportError)

    def test_files_are_kept(self, checkpoint, tmp_path):
        model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(ROWS)
        (tmp_path / "served").mkdir()
        (tmp_path / "served" / "notes.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="not empty"):
            export_onnx(model, tmp_path / "served" / "model.onnx")

    def test_a_wrong_graph_does_not_appear(self, exported, tmp_path, monkeypatch):
        model, file = exported
        monkeypatch.setattr(_onnx, "export_graph", lambda *args: file.read_bytes())
        run = onnxruntime.InferenceSession.run
        shifted = lambda self, *given: [each + 1 for each in run(self, *given)]  # noqa: E731
        monkeypatch.setattr(onnxruntime.InferenceSession, "run", shifted)
        self.refuse(model, tmp_path / "served" / "model.onnx", "of the exported model differ")


def test_the_command_line(shallow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder, head = load_checkpoint(shallow)
    adapter = LogitPreservingWhitening(head).fit(encoder.transform(ROWS))
    save_adapter(adapter, "a", base_model=encoder)
    completed = succeed("export", "a", "--model", shallow, "--out", "m", "--onnx")
    assert "Use: m/README.md" in completed.stdout
    same(
        served(tmp_path / "m" / "model.onnx", TEXTS)["sentence_vector"],
        adapter.transform(encoder.transform(TEXTS)),
    )
