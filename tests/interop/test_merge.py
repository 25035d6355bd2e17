"""A merged checkpoint gives the logits of encoder, adapter and head, without isoadapt."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import AdaptedEncoder, LinearHead, LogitPreservingWhitening, Whitening, adapters
from isoadapt.encoders import load_checkpoint
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from tests.interop.examples import CLASSES, ROWS, blurred, served_logits
from tests.refusals import refusals
from tests.tiny_models import ARCHITECTURES, make_model, make_tokenizer, save_model, save_pair

pytestmark = pytest.mark.filterwarnings("ignore:the adapter's head is not the checkpoint's")

TEXTS = ROWS[:8]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
SLOW = [each for each in SLOW if each.values[0] not in ("bert", "gpt2")]  # which has no bias


def one_by_one(encoder, texts=TEXTS):
    """Embeddings of texts each alone, as plain transformers gets them here: no padding."""
    return np.concatenate([encoder.transform([text]) for text in texts]).astype(np.float64)


def close(folder, expected, texts=TEXTS):
    difference = np.abs(served_logits(folder, texts) - expected).max()
    assert difference < 1e-5 * np.abs(expected).max(), folder


def expected_logits(adapter, encoder, texts=TEXTS):
    return adapter.head_.outputs(adapter.transform(one_by_one(encoder, texts)))


def folder_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestLogits:
    @pytest.mark.parametrize("architecture", ["bert", *SLOW])
    def test_architectures_serve_what_the_pipeline_gives(self, architecture, tmp_path):
        folder = save_model(tmp_path / "model", architecture)
        encoder, head = load_checkpoint(folder)
        self.check(folder, tmp_path, encoder, head, blurred(encoder), CLASSES)

    @pytest.mark.slow
    def test_a_real_model_serves_what_the_pipeline_gives(self, tmp_path, shared):
        folder = shared / "models/cola-minilm"
        with np.load(shared / "embeddings/cola.npz") as stored:
            rows = stored["E_train"][:1000], stored["y_train"][:1000]
        lines = (shared / "data/cola/dev.tsv").read_text("utf-8").splitlines()[1:13]
        texts = [line.split("\t")[0] for line in lines]
        self.check(folder, tmp_path, *load_checkpoint(folder), *rows, texts)

    def check(self, folder, out, encoder, head, X, y, texts=TEXTS):
        joint = adapters.IsotropyLayer(head, head_training="joint", max_epochs=2, random_state=0)
        kinds = [adapters.IsoBN(), joint, Whitening(head=head, shrinkage=1e-3)]
        for number, adapter in enumerate(kinds):
            adapter.fit(X, y)
            merge_into_checkpoint(adapter, folder, out / str(number))
            Z = adapter.transform(one_by_one(encoder, texts))
            close(out / str(number), (adapter.head_ or head).outputs(Z), texts)

    def test_pipelines_merge(self, source, tmp_path):
        encoder, head = load_checkpoint(source.folder)
        X = source.rows
        first = Whitening("pca", n_components=12, shrinkage=0.1).fit(X)
        second = Whitening(shrinkage=0.2, strength=0.5, head="logistic")
        second.fit(first.transform(X), CLASSES)
        classifier = LogisticRegression().fit(second.transform(first.transform(X)), CLASSES)
        rows = one_by_one(encoder)
        Z = second.transform(first.transform(rows))
        bare = Whitening(shrinkage=0.1).fit(X)  # the checkpoint's head reads it
        expected = [
            (make_pipeline(first, "passthrough", second), second.head_.outputs(Z)),
            (make_pipeline(encoder, make_pipeline(first), second), second.head_.outputs(Z)),
            (make_pipeline(first, second, classifier), classifier.decision_function(Z)),
            (make_pipeline(bare, head), head.outputs(bare.transform(rows))),
            (bare, head.outputs(bare.transform(rows))),
        ]
        for number, (pipeline, logits) in enumerate(expected):
            close(merge_into_checkpoint(pipeline, source.folder, tmp_path / str(number)), logits)

    def test_adapted_encoders_and_loaded_adapters_merge_as_the_adapter(self, source, tmp_path):
        """They have the checkpoint's own head, so that no warning is given."""
        model = AdaptedEncoder(str(source.folder), Whitening(shrinkage=0.1)).fit(ROWS)
        adapter = model.pipeline_["adapter"]
        loaded = load_adapter(save_adapter(adapter, tmp_path / "adapter"))
        with warnings.catch_warnings(action="error", category=UserWarning):
            first, *others = (
                folder_bytes(merge_into_checkpoint(each, source.folder, tmp_path / str(i)))
                for i, each in enumerate([adapter, model, loaded])
            )
        assert all(each == first for each in others)

    def test_a_sigmoid(self, tmp_path):
        """One output of the checkpoint is two classes of its head."""
        sigmoid = {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}
        folder = save_model(tmp_path / "model", num_labels=1, num_hidden_layers=1, **sigmoid)
        encoder, head = load_checkpoint(folder)
        assert head.classes_.tolist() == [0, 1]
        adapter = Whitening(shrinkage=0.1).fit(blurred(encoder))
        expected = np.diff(head.outputs(adapter.transform(one_by_one(encoder))))
        close(merge_into_checkpoint(adapter, folder, tmp_path / "out"), expected)


def save_named(folder, names):
    """A checkpoint whose id2label holds these names, in this order."""
    model = make_model(num_labels=len(names), num_hidden_layers=1)
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    return save_pair(model, make_tokenizer(), folder)


class TestLabels:
    """Rows of the merged head are in the checkpoint's order, whatever the adapter's is."""

    @pytest.mark.parametrize(
        ("names", "labels"),
        [
            (["not_equivalent", "equivalent"], None),
            (["good", "bad", "fair"], [0, 1, 2]),
            (["3 stars", "1 star", "2 stars"], ["3", "1", "2"]),
        ],
    )
    def test_columns_stay_those_of_the_checkpoint(self, names, labels, tmp_path):
        """With its own head, given or taken, in any spelling."""
        folder = save_named(tmp_path / "named", names)
        encoder, head = load_checkpoint(folder, y=labels)
        labels = names if labels is None else labels
        assert head.classes_.tolist() == sorted(labels)
        own = served_logits(folder, TEXTS)
        predicted = np.array(labels)[own.argmax(axis=1)]
        np.testing.assert_array_equal(head.predict(one_by_one(encoder)), predicted)
        adapter = Whitening(shrinkage=0.1).fit(blurred(encoder))
        stored = load_file(folder / "model.safetensors")
        expected = adapter.transform(one_by_one(encoder)) @ stored["classifier.weight"].numpy().T
        for way, model in (("by name", make_pipeline(adapter, head)), ("own", adapter)):
            merge_into_checkpoint(model, folder, tmp_path / way)
            close(tmp_path / way, expected + stored["classifier.bias"].numpy())
            config = json.loads((tmp_path / way / "config.json").read_text())
            assert list(config["id2label"].values()) == names
        assert np.abs(np.diff(own)).min() > 0.01  # columns in another order would show

    def test_a_probe_with_names(self, tmp_path):
        names = ["good", "bad", "fair"]
        folder = save_named(tmp_path / "named", names)
        encoder, _ = load_checkpoint(folder)
        adapter = Whitening(head="logistic", shrinkage=0.1)
        adapter.fit(blurred(encoder), np.array(names)[CLASSES])
        assert adapter.classes_.tolist() == ["bad", "fair", "good"]
        with pytest.warns(UserWarning, match="head is not the checkpoint's"):
            merge_into_checkpoint(adapter, folder, tmp_path / "out")
        expected = expected_logits(adapter, encoder)[:, [2, 0, 1]]
        close(tmp_path / "out", expected)
        assert np.ptp(expected, axis=1).min() > 0.01  # rows in another order would show
        assert load_checkpoint(tmp_path / "out")[1].classes_.tolist() == ["bad", "fair", "good"]

    @pytest.mark.parametrize("classes", [[0, 1], ["a", "b", "c"], None])
    def test_other_classes_are_refused(self, classes, source, tmp_path):
        n = len(classes or "abc")
        head = LinearHead(np.eye(n, source.rows.shape[1]), np.zeros(n), classes)
        adapter = LogitPreservingWhitening(head).fit(source.rows)
        named = r"LinearHead\(.* the checkpoint's LinearHead\(.* must predict the same"
        with pytest.raises(ValueError, match=named):
            merge_into_checkpoint(adapter, source.folder, tmp_path / "out")
        assert not (tmp_path / "out").exists()


class TestCopy:
    """Everything else of the checkpoint stays, and the checkpoint itself too."""

    def test_only_the_classifier_changes(self, source, tmp_path):
        before = folder_bytes(source.folder)
        adapter = Whitening(head=source.head).fit(source.rows, CLASSES)
        out = merge_into_checkpoint(adapter, source.folder, tmp_path / "out")
        assert folder_bytes(source.folder) == before
        after = folder_bytes(out)
        assert after.keys() == before.keys() | {"isoadapt.txt", "reference.json"}
        assert {name for name in before if after[name] != before[name]} == {"model.safetensors"}
        old, new = (load_file(folder / "model.safetensors") for folder in (source.folder, out))
        changed = {name for name in old if not old[name].equal(new[name])}
        assert changed == {"classifier.weight", "classifier.bias"}
        assert len({path.stat().st_mode for path in out.iterdir()}) == 1
        own = load_checkpoint(source.folder)[1]
        np.testing.assert_array_equal(own.coef_, source.head.coef_)

    def test_half_precision_becomes_single(self, tmp_path):
        half = save_pair(make_model(num_hidden_layers=1).half(), make_tokenizer(), tmp_path / "h")
        encoder, head = load_checkpoint(half)
        adapter = Whitening(head=head).fit(blurred(encoder), CLASSES)
        out = merge_into_checkpoint(adapter, half, tmp_path / "out")
        assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
        weights = load_file(out / "model.safetensors").values()
        assert {weight.dtype for weight in weights} == {torch.float32}
        close(out, expected_logits(adapter, encoder))

    def test_files_of_sentence_transformers_come_along(self, source, tmp_path):
        folder = shutil.copytree(source.folder, tmp_path / "source")
        (folder / "1_Pooling").mkdir()
        kept = ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"]
        left = ["optimizer.pt", "README.md", "onnx.model.bin", "trainer_state.json"]
        for name in kept + left:
            (folder / name).write_text("[ ]")  # no modules, in a spelling of its own
        adapter = Whitening().fit(source.rows)
        out = merge_into_checkpoint(adapter, folder, tmp_path / "out")
        merge_into_checkpoint(adapter, folder, out, overwrite=True)
        for name in kept:
            assert (out / name).read_text() == "[ ]"
        assert not any((out / name).exists() for name in left)


def huge(head, X):
    coef = head.coef_ * 1e100
    return LogitPreservingWhitening(LinearHead(coef, head.intercept_, head.classes_)).fit(X)


test_what_cannot_be_merged_is_named = refusals(
    (lambda _, X: adapters.FlowAdapter(max_epochs=1).fit(X), "is not an affine map"),
    (lambda _, X: Whitening().fit(X[:, :7]), "maps 7 features to 7, .* takes 16"),
    (lambda _, X: Whitening("pca", n_components=3).fit(X), "maps 16 features to 3"),
    (huge, "logits of the exported model differ by nan"),
    (lambda *_: Whitening(), "not fitted", NotFittedError),
    (lambda *_: AdaptedEncoder("a", Whitening()), "not fitted", NotFittedError),
    (lambda *_: make_pipeline(StandardScaler(), Whitening()), "StandardScaler", TypeError),
    call=lambda model, source, tmp_path: merge_into_checkpoint(
        model(source.head, source.rows), source.folder, tmp_path / "out"
    ),
)


def test_a_head_without_a_bias(tmp_path):
    folder = save_model(tmp_path / "model", "gpt2", num_hidden_layers=1)
    encoder, head = load_checkpoint(folder)
    adapter = Whitening(head=head).fit(blurred(encoder), CLASSES)
    with pytest.raises(ValueError, match=r"GPT2ForSequenceClassification has no bias"):
        merge_into_checkpoint(adapter, folder, tmp_path / "out")
    scaled = adapters.IsoBN().fit(blurred(encoder))  # by factors alone
    expected = head.outputs(scaled.transform(one_by_one(encoder)))
    out = merge_into_checkpoint(scaled, folder, tmp_path / "out")
    close(out, expected)
    before, after = (load_file(each / "model.safetensors").keys() for each in (folder, out))
    assert after == before


@pytest.mark.filterwarnings("ignore:R² of the teacher")
@pytest.mark.parametrize(
    "model",
    [
        lambda folder: LogitPreservingWhitening(load_checkpoint(folder)[1]),
        lambda folder: AdaptedEncoder(folder, LogitPreservingWhitening(strength=0.5)),
        lambda folder: AdaptedEncoder(folder, adapters.TeacherReadout(), folder),
        lambda folder: AdaptedEncoder(folder, adapters.TeacherReadout(space="head"), folder),
    ],
)
def test_a_merge_that_repairs_nothing_is_refused(model, source, tmp_path):
    """By the weights that it would write; a head of its own makes the same adapter a change."""
    model = model(source.folder)
    model.fit(ROWS if isinstance(model, AdaptedEncoder) else source.rows)
    with pytest.raises(ValueError, match=r"repair nothing.*to_sentence_transformer.*export"):
        merge_into_checkpoint(model, source.folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    other = LinearHead(2 * source.head.coef_, source.head.intercept_, source.head.classes_)
    changed = LogitPreservingWhitening(other).fit(source.rows)
    close(
        merge_into_checkpoint(changed, source.folder, tmp_path / "out"),
        other.outputs(one_by_one(load_checkpoint(source.folder)[0])),
    )


def test_folders_that_may_not_be_read_or_written(source, bare, merged, tmp_path):
    out = shutil.copytree(merged, tmp_path / "out")
    (out / "thesis.tex").write_text("kept")
    before = folder_bytes(out), folder_bytes(source.folder)
    for model, target, error, named in (
        (tmp_path / "absent", tmp_path / "new", FileNotFoundError, "model_folder=.*absent"),
        (make_model(), tmp_path / "new", TypeError, "is a Bert.*save_pretrained"),
        (bare, tmp_path / "new", ValueError, "no classifier.*to_sentence_transformer"),
        (source.folder, source.folder, FileExistsError, "is the model that is read"),
        (source.folder, out, FileExistsError, "not part of a checkpoint.*thesis.tex"),
    ):
        with pytest.raises(error, match=named):
            merge_into_checkpoint(source.adapter, model, target, overwrite=True)
    assert (folder_bytes(out), folder_bytes(source.folder)) == before
    assert not (tmp_path / "new").exists()
