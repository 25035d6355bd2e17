"""A merged checkpoint gives the logits of encoder, adapter and head, without isoadapt."""

import itertools
import json
import shutil
import warnings

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import (
    AdaptedEncoder,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    Whitening,
    load_checkpoint,
)
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import compose
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from tests.interop.examples import without_isoadapt
from tests.tiny_models import (
    ARCHITECTURES,
    WORDS,
    make_model,
    make_tokenizer,
    save_model,
    save_pair,
)

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 90)]
LABELS = rng.integers(0, 3, 90)


def relative_difference(logits, expected):
    return np.abs(logits - expected).max() / np.abs(expected).max()


def one_by_one(encoder, texts):
    """Embeddings of texts each alone, as plain transformers gets them here: no padding."""
    return np.concatenate([encoder.transform([text]) for text in texts]).astype(np.float64)


def expected_logits(adapter, encoder, texts):
    return adapter.head_.outputs(adapter.transform(one_by_one(encoder, texts)))


def merged_logits(folder, texts):
    """Logits of plain transformers, where isoadapt cannot be imported."""
    with without_isoadapt(), torch.inference_mode():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        assert model.dtype == torch.float32
        tokens = [tokenizer([text], return_tensors="pt", truncation=True) for text in texts]
        return np.stack([model(**batch).logits[0].numpy() for batch in tokens])


def folder_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def embedded(checkpoint):
    """Encoder and head of a tiny BERT, and rows to fit to."""
    encoder, head = load_checkpoint(checkpoint)
    return encoder, head, blurred(encoder)


@pytest.fixture
def adapter(embedded):
    return LogitPreservingWhitening(embedded[1]).fit(embedded[2])


def blurred(encoder):
    """Embeddings with noise: a random model leaves some directions all but empty.

    Whitening would amplify the rounding of single precision in them.
    """
    X = encoder.transform(TEXTS)
    return X + rng.normal(size=X.shape).astype(np.float32)


def check_merge(adapter, model, encoder, texts, out):
    merge_into_checkpoint(adapter, model, out)
    expected = expected_logits(adapter, encoder, texts)
    assert relative_difference(merged_logits(out, texts), expected) < 1e-5, out


def test_every_architecture_serves_what_the_pipeline_gives(tmp_path):
    others = itertools.cycle(["refit", "joint", "kept"])
    for architecture in ARCHITECTURES:
        model = save_model(tmp_path / architecture, architecture)
        encoder, head = load_checkpoint(model)
        X = blurred(encoder)
        adapters = make_adapters(head)
        # The head of gpt2 has no bias. One architecture gets every adapter, the others one each.
        names = {"bert": [*adapters], "gpt2": ["kept"]}.get(architecture, [next(others)])
        for name in names:
            adapters[name].fit(X, LABELS)
            check_merge(adapters[name], model, encoder, TEXTS[:8], model.with_suffix("." + name))


def test_a_real_model_serves_what_the_pipeline_gives(tmp_path, shared):
    model = shared / "models/cola-minilm"
    stored = np.load(shared / "embeddings/cola.npz")
    encoder, head = load_checkpoint(model)
    lines = (shared / "data/cola/dev.tsv").read_text("utf-8").splitlines()[1:13]
    for name, adapter in make_adapters(head).items():
        adapter.fit(stored["E_train"][:1000], stored["y_train"][:1000])
        texts = [line.split("\t")[0] for line in lines]
        check_merge(adapter, model, encoder, texts, tmp_path / name)


def save_prophetnet(folder):
    (folder / "words").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]))
    transformers.ProphetNetTokenizer(str(folder / "words")).save_pretrained(folder)


def save_phobert(folder):
    (folder / "words").write_text("".join(f"{word} 1\n" for word in ("the", "cat", "a@@", "t")))
    (folder / "pairs").write_text("t h 5\nth e</w> 4\nc a 3\nca t</w> 2\n")
    tokenizer = transformers.PhobertTokenizer(str(folder / "words"), str(folder / "pairs"))
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("save", "file"), [(save_phobert, "bpe.codes"), (save_prophetnet, "prophetnet.tokenizer")]
)
def test_files_that_only_some_tokenizers_have_come_along(save, file, tmp_path):
    folder, scratch = tmp_path / "model", tmp_path / "scratch"
    scratch.mkdir()
    save(scratch)
    make_model("roberta").save_pretrained(folder)
    for name in ("words", "pairs"):
        (scratch / name).unlink(missing_ok=True)
    shutil.copytree(scratch, folder, dirs_exist_ok=True)
    assert (folder / file).is_file()
    (folder / "training_state.json").write_text("{}")
    adapted = AdaptedEncoder(str(folder), LogitPreservingWhitening()).fit(TEXTS)
    out = merge_into_checkpoint(adapted, folder, tmp_path / "out")
    assert not (out / "training_state.json").exists()
    encoder, head = load_checkpoint(out)
    expected = adapted.head_.outputs(adapted.transform(TEXTS[:3]))
    np.testing.assert_allclose(
        head.outputs(encoder.transform(TEXTS[:3])), expected, rtol=1e-4, atol=1e-4
    )
    (folder / "training_state.json").unlink()
    assert merge_into_checkpoint(adapted, out, folder, overwrite=True) == folder


def test_a_transformer_inside_a_folder_of_sentence_transformers(tmp_path):
    inner = save_model(tmp_path / "model" / "0_Transformer")
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    encoder, head = load_checkpoint(inner)
    adapter = LogitPreservingWhitening(head).fit(blurred(encoder))
    nested, plain = (
        merge_into_checkpoint(adapter, source, tmp_path / name)
        for source, name in ((tmp_path / "model", "nested"), (inner, "plain"))
    )
    assert folder_bytes(nested) == folder_bytes(plain)


def make_adapters(head):
    """One that keeps the logits, one that trains the head along, one that fits it anew."""
    return {
        "kept": LogitPreservingWhitening(head),
        "joint": IsotropyLayer(head, head_training="joint", max_epochs=2, random_state=0),
        "refit": Whitening(head=head, shrinkage=1e-3),
    }


def save_named(folder, names, flag=True):
    """A checkpoint whose id2label holds these names, in this order."""
    model = make_model(num_labels=len(names))
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    model.config.isoadapt_label_names = flag
    return save_pair(model, make_tokenizer(), folder)


class TestLabels:
    """Rows of the merged head are in the checkpoint's order, whatever the adapter's is."""

    @pytest.fixture
    def named(self, tmp_path):
        """A checkpoint whose labels are names, not in alphabetical order."""
        return save_named(tmp_path / "named", ["good", "bad", "fair"])

    @pytest.mark.parametrize(
        "names", [["not_equivalent", "equivalent"], ["good", "bad", "fair"]], ids=len
    )
    @pytest.mark.parametrize("flag", [True, False])
    def test_columns_stay_those_of_the_checkpoint(self, names, flag, tmp_path):
        """With its own head, given or taken, and logits that may not change."""
        folder = save_named(tmp_path / "named", names, flag)
        encoder, head = load_checkpoint(folder)
        assert head.classes_.tolist() == (sorted(names) if flag else list(range(len(names))))
        own = merged_logits(folder, TEXTS[:9])
        predicted = np.array(names if flag else range(len(names)))[own.argmax(axis=1)]
        embeddings = one_by_one(encoder, TEXTS[:9])
        np.testing.assert_array_equal(head.predict(embeddings), predicted)
        named = LinearHead(head.coef_, head.intercept_, np.array(sorted(names)) if flag else names)
        X = encoder.transform(TEXTS)
        preserving = LogitPreservingWhitening(head).fit(X)
        without = LogitPreservingWhitening(head).fit(X)
        without.head_ = None  # the checkpoint's is taken
        adapters = {"given": preserving, "taken": without}
        adapters["by name"] = LogitPreservingWhitening(named).fit(X)
        for way, adapter in adapters.items():
            merge_into_checkpoint(adapter, folder, tmp_path / way)
            logits = merged_logits(tmp_path / way, TEXTS[:9])
            np.testing.assert_allclose(logits, own, atol=1e-4)
            config = json.loads((tmp_path / way / "config.json").read_text())
            assert list(config["id2label"].values()) == names
        assert np.abs(np.diff(own)).min() > 0.01  # columns in another order would show

    def check(self, adapter, folder, encoder, out):
        merge_into_checkpoint(adapter, folder, out)
        logits = merged_logits(out, TEXTS[:9])
        config = json.loads((out / "config.json").read_text())
        assert config["id2label"] == {"0": "good", "1": "bad", "2": "fair"}
        labels = [config["id2label"][str(row)] for row in logits.argmax(axis=1)]
        assert labels == adapter.predict(one_by_one(encoder, TEXTS[:9])).tolist()
        order = [adapter.classes_.tolist().index(name) for name in ("good", "bad", "fair")]
        expected = expected_logits(adapter, encoder, TEXTS[:9])[:, order]
        np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())
        assert np.ptp(expected, axis=1).min() > 0.01  # rows in another order would show

    def test_a_probe_with_names(self, named, tmp_path):
        encoder, head = load_checkpoint(named)
        assert head.classes_.tolist() == ["bad", "fair", "good"]
        adapter = Whitening(head="logistic", shrinkage=0.1)
        adapter.fit(blurred(encoder), np.array(["good", "bad", "fair"])[LABELS])
        assert adapter.classes_.tolist() == ["bad", "fair", "good"]
        self.check(adapter, named, encoder, tmp_path / "out")
        again = load_checkpoint(tmp_path / "out")[1]
        assert again.classes_.tolist() == ["bad", "fair", "good"]

    @pytest.mark.parametrize("classes", [[0, 1], ["a", "b", "c"], [1, 2, 3], [0, 1, 2, 3]])
    def test_other_classes_are_refused(self, classes, checkpoint, embedded, tmp_path):
        X = embedded[2]
        adapter = Whitening(head="logistic").fit(X, np.array(classes)[LABELS % len(classes)])
        adapter = adapter if len(classes) != 4 else self.with_four(X)
        with pytest.raises(ValueError, match=r"head has the classes .*the checkpoint \[0, 1, 2\]"):
            merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def with_four(self, X):
        head = LinearHead(np.eye(4, X.shape[1]), np.zeros(4), [0, 1, 2, 3])
        return LogitPreservingWhitening(head).fit(X)

    def test_a_regressor_is_no_classifier(self, checkpoint, embedded, tmp_path):
        adapter = Whitening(head="ridge").fit(embedded[2], LABELS.astype(float))
        with pytest.raises(ValueError, match="both must be classifiers"):
            merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")

    def test_regression(self, tmp_path):
        folder = save_model(tmp_path / "model", num_labels=1)
        encoder, _ = load_checkpoint(folder)
        X = encoder.transform(TEXTS)
        adapter = Whitening(head="ridge").fit(X, X[:, 0] + LABELS)
        merge_into_checkpoint(adapter, folder, tmp_path / "out")
        logits = merged_logits(tmp_path / "out", TEXTS[:9])
        assert relative_difference(logits, expected_logits(adapter, encoder, TEXTS[:9])) < 1e-5


class TestComposition:
    """Affine adapters in a row are one affine map, forth and back."""

    def fit(self, head, X):
        first = Whitening("pca", n_components=12, shrinkage=0.1).fit(X)
        second = Whitening(shrinkage=0.2, strength=0.5, head="logistic")
        return first, second.fit(first.transform(X.astype(np.float64)), LABELS)

    def test_composition_is_the_sequence(self, embedded):
        _, head, X = embedded
        first, second = self.fit(head, X)
        rows = X.astype(np.float64)
        whole = compose([first.to_affine(), second.to_affine()])
        expected = second.transform(first.transform(rows))
        assert whole.matrix.dtype == whole.offset.dtype == np.float64
        assert whole.matrix.shape == (12, 16)
        np.testing.assert_allclose(whole(rows), expected, rtol=0, atol=1e-12)

    def test_maps_in_the_wrong_order_are_refused(self):
        narrow = Affine(np.ones((2, 3)), np.zeros(2))
        with pytest.raises(ValueError, match="takes 3 features, but the one before it returns 2"):
            compose([narrow, narrow])

    def test_pipelines_merge(self, checkpoint, embedded, tmp_path):
        encoder, head, X = embedded
        first, second = self.fit(head, X)
        classifier = LogisticRegression().fit(second.transform(first.transform(X)), LABELS)
        own_head = LogitPreservingWhitening(head).fit(X)
        rows = one_by_one(encoder, TEXTS[:9])
        Z = second.transform(first.transform(rows))
        expected = [
            (make_pipeline(first, "passthrough", second), second.head_.outputs(Z)),
            (make_pipeline(encoder, own_head), head.outputs(rows)),
            (make_pipeline(encoder, make_pipeline(first), second), second.head_.outputs(Z)),
            (make_pipeline(first, second, classifier), classifier.decision_function(Z)),
            (make_pipeline(own_head, head), head.outputs(rows)),
        ]
        for number, (pipeline, logits) in enumerate(expected):
            out = merge_into_checkpoint(pipeline, checkpoint, tmp_path / str(number))
            assert relative_difference(merged_logits(out, TEXTS[:9]), logits) < 1e-5, pipeline

    def test_adapted_encoders_and_loaded_adapters_merge_as_the_adapter(self, checkpoint, tmp_path):
        model = AdaptedEncoder(str(checkpoint), IsotropyLayer(solver="exact")).fit(TEXTS, LABELS)
        adapter = model.pipeline_["adapter"]
        loaded = load_adapter(save_adapter(adapter, tmp_path / "adapter"))
        first, *others = (
            folder_bytes(merge_into_checkpoint(each, checkpoint, tmp_path / str(i)))
            for i, each in enumerate([adapter, model, model.pipeline_, loaded])
        )
        assert all(each == first for each in others)
        assert first != folder_bytes(checkpoint)

    @pytest.mark.parametrize("own", [True, False])
    def test_another_head_than_the_checkpoints_warns(self, own, checkpoint, embedded, tmp_path):
        _, head, X = embedded
        adapter = LogitPreservingWhitening(head if own else "logistic").fit(X, LABELS)
        loaded = load_adapter(save_adapter(adapter, tmp_path / "adapter"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            merge_into_checkpoint(loaded, checkpoint, tmp_path / "out")
        said = [each for each in caught if "head is not the checkpoint's" in str(each.message)]
        assert len(said) == (not own)

    def test_without_a_head_the_checkpoints_own_reads(self, checkpoint, embedded, tmp_path):
        encoder, head, X = embedded
        adapter = Whitening(shrinkage=0.1).fit(X)
        out = merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")
        expected = head.outputs(adapter.transform(one_by_one(encoder, TEXTS[:9])))
        assert relative_difference(merged_logits(out, TEXTS[:9]), expected) < 1e-5


class TestCopy:
    """Everything else of the checkpoint stays, and the checkpoint itself too."""

    def test_only_the_classifier_changes(self, checkpoint, embedded, tmp_path):
        before = folder_bytes(checkpoint)
        adapter = Whitening(head=embedded[1]).fit(embedded[2], LABELS)
        out = merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")
        assert folder_bytes(checkpoint) == before
        after = folder_bytes(out)
        assert after.keys() == before.keys() | {"isoadapt.txt", "reference.json"}
        changed = {name for name in before if after[name] != before[name]}
        assert changed == {"model.safetensors"}
        old, new = (load_file(folder / "model.safetensors") for folder in (checkpoint, out))
        assert {name for name in old if not old[name].equal(new[name])} == {
            "classifier.weight",
            "classifier.bias",
        }
        assert len({path.stat().st_mode for path in out.iterdir()}) == 1
        own = load_checkpoint(checkpoint)[1]
        np.testing.assert_array_equal(own.coef_, embedded[1].coef_)

    def test_half_precision_becomes_single(self, tmp_path):
        save_pair(make_model().half(), make_tokenizer(), tmp_path / "half")
        encoder, head = load_checkpoint(tmp_path / "half")
        adapter = Whitening(head=head).fit(blurred(encoder), LABELS)
        out = merge_into_checkpoint(adapter, tmp_path / "half", tmp_path / "out")
        assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
        weights = load_file(out / "model.safetensors").values()
        assert {weight.dtype for weight in weights} == {torch.float32}
        expected = expected_logits(adapter, encoder, TEXTS[:9])
        assert relative_difference(merged_logits(out, TEXTS[:9]), expected) < 1e-5

    def test_files_of_sentence_transformers_come_along(self, adapter, checkpoint, tmp_path):
        source = tmp_path / "source"
        shutil.copytree(checkpoint, source)
        (source / "1_Pooling").mkdir()
        kept = ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"]
        kept.append("sentence_xlm-roberta_config.json")  # an older name
        left = ["optimizer.pt", "README.md", "onnx.model.bin", "trainer_state.json"]
        for name in kept + left:
            (source / name).write_text(f'["{name}"]')
        out = merge_into_checkpoint(adapter, source, tmp_path / "out")
        for name in kept:
            assert (out / name).read_text() == f'["{name}"]'
        assert not any((out / name).exists() for name in left)
        merge_into_checkpoint(adapter, source, out, overwrite=True)
        assert (out / "1_Pooling" / "config.json").is_file()


class TestRefusals:
    def refuse(self, adapter, folder, out, error, message, **options):
        before = folder_bytes(out) if out.exists() else None
        with pytest.raises(error, match=message):
            merge_into_checkpoint(adapter, folder, out, **options)
        assert (folder_bytes(out) if out.exists() else None) == before

    def test_what_the_checkpoint_cannot_hold(self, checkpoint, embedded, tmp_path):
        _, head, X = embedded
        huge = LinearHead(head.coef_ * 1e100, head.intercept_, head.classes_)
        layer = IsotropyLayer(head, network="mlp", max_epochs=1).fit(X, LABELS)
        for adapter, message in (
            (layer, r"network='mlp'.* is not an affine map.*AdaptedEncoder"),
            (Whitening().fit(X[:, :7]), r"n_features_in_=7.*have width 16: fit it to"),
            (Whitening("pca", n_components=3).fit(X), "returns 3 features, but the head takes 16"),
            (LogitPreservingWhitening(huge).fit(X), "beyond float32"),
        ):
            self.refuse(adapter, checkpoint, tmp_path / "out", ValueError, message)

    def test_a_bias_where_there_is_none(self, tmp_path):
        folder = save_model(tmp_path / "model", "gpt2")
        encoder, head = load_checkpoint(folder)
        adapter = Whitening(head=head).fit(encoder.transform(TEXTS), LABELS)
        message = r"GPT2ForSequenceClassification has no bias.*LogitPreservingWhitening"
        self.refuse(adapter, folder, tmp_path / "out", ValueError, message)

    def test_what_is_not_fitted(self, checkpoint, tmp_path):
        for model in (Whitening(), make_pipeline(Whitening()), AdaptedEncoder(str(checkpoint))):
            self.refuse(model, checkpoint, tmp_path / "out", NotFittedError, "not fitted")

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (StandardScaler(), r"StandardScaler\(\) is not an adapter"),
            (make_pipeline(StandardScaler(), Whitening()), r"StandardScaler.*is not an adapter"),
            (make_pipeline("passthrough"), "Pipeline without an adapter"),
            (None, "None is not an adapter"),
        ],
    )
    def test_what_is_no_adapter(self, model, message, checkpoint, tmp_path):
        self.refuse(model, checkpoint, tmp_path / "out", TypeError, message)

    def test_folders(self, adapter, checkpoint, tmp_path):
        out = tmp_path / "out"
        self.refuse(adapter, tmp_path / "absent", out, FileNotFoundError, r"model_folder=.*absent")
        self.refuse(adapter, tmp_path, out, FileNotFoundError, r"not a folder with a config.json")
        self.refuse(adapter, checkpoint, checkpoint, FileExistsError, "not empty")
        message = "is the model that is read, which is kept"
        self.refuse(adapter, checkpoint, checkpoint, FileExistsError, message, overwrite=True)
        merge_into_checkpoint(adapter, checkpoint, out)
        self.refuse(adapter, checkpoint, out, FileExistsError, "overwrite=True")
        (out / "thesis.tex").write_text("kept")
        message = r"not part of a checkpoint.*thesis.tex"
        self.refuse(adapter, checkpoint, out, FileExistsError, message, overwrite=True)
