"""One folder serves adapted vectors and the classifier, without isoadapt."""

import io
import json
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    FlowAdapter,
    LogitPreservingWhitening,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.interop import (
    load_adapter,
    merge_into_checkpoint,
    save_adapter,
    to_sentence_transformer,
)
from isoadapt.interop._differences import Expected, compared
from tests.interop.examples import without_isoadapt
from tests.tiny_models import ARCHITECTURES, MORE_ARCHITECTURES, TEXTS, WORDS, save_model

library = pytest.importorskip("sentence_transformers")

rng = np.random.default_rng(0)
ROWS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 90)]
LABELS = rng.integers(0, 3, len(ROWS))
LENGTH = 9  # tokens; some of TEXTS are longer
FEW = ("bert", "distilbert", "modernbert", "gpt2")  # the other architectures take long
SERVE = """
import sys, json
import numpy as np, torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer
for job in json.load(sys.stdin):
    folder, texts = job["folder"], job["texts"]
    model = SentenceTransformer(folder, device="cpu")
    found = {
        "padded": model.encode(texts),
        "alone": model.encode(texts, batch_size=1),
        "length": model.max_seq_length,
    }
    if job["classifies"]:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokens = AutoTokenizer.from_pretrained(folder)(
            texts, padding=True, truncation=True, return_tensors="pt"
        )
        with torch.inference_mode():
            found["logits"] = model(**tokens).logits.numpy()
    np.savez(job["out"], **found)
    exec(job["code"], {})
"""


class Served:
    """Folders with the vectors and logits that are expected of them, loaded in one process."""

    def __init__(self, folder):
        self.folder, self.jobs, self.expected = folder, [], {}

    def add(self, name, pipeline, model, texts, logits=None, **options):
        """Export a pipeline of encoder and adapter; `logits` of its head, if there is a head."""
        written = to_sentence_transformer(pipeline, model, self.folder / name, **options)
        vectors = np.concatenate([pipeline.transform([text]) for text in texts])
        self.expected[name] = vectors, logits
        job = {"folder": str(written), "texts": texts, "classifies": logits is not None}
        self.jobs.append(job | {"out": str(self.folder / f"{name}.npz"), "code": ""})

    def run(self):
        """Load all folders in this process, in which importing isoadapt fails meanwhile."""
        with without_isoadapt() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "stdin", io.StringIO(json.dumps(self.jobs)))
            exec(SERVE, {})
        return self

    def run_in_a_process(self):
        hidden = "import sys; sys.modules['isoadapt'] = None\n"
        done = subprocess.run(
            [sys.executable, "-P", "-I", "-c", hidden + SERVE],
            input=json.dumps(self.jobs),
            text=True,
            capture_output=True,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr

    def found(self, name):
        return np.load(self.folder / f"{name}.npz")

    def check(self, name):
        found, (vectors, logits) = self.found(name), self.expected[name]
        for kind in ("padded", "alone"):
            assert np.abs(cosines(found[kind]) - cosines(vectors)).max() < 1e-5, (name, kind)
            np.testing.assert_allclose(found[kind], vectors, atol=1e-4 * np.abs(vectors).max())
        if logits is not None:
            assert np.abs(found["logits"] - logits).max() < 1e-4 * np.abs(logits).max(), name


def cosines(vectors):
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return rows @ rows.T


def fitted(adapter, encoder, y=None):
    """Fit to embeddings with noise: a random model leaves some directions all but empty."""
    X = encoder.transform(ROWS).astype(np.float64)
    return adapter.fit(X + 0.3 * X.std() * rng.normal(size=X.shape), y)


def texts_of(architecture):
    """A decoder cannot embed a text without tokens."""
    return [text for text in TEXTS if text] if architecture == "gpt2" else TEXTS


@pytest.fixture(scope="module")
def served(tmp_path_factory, bare, request):
    served = Served(tmp_path_factory.mktemp("served"))
    for architecture in FEW:
        model, encoder, texts = add_classifier(served, architecture)
        if architecture in ("bert", "modernbert"):
            adapted = make_pipeline(encoder, fitted(Whitening(head="logistic"), encoder, LABELS))
            logits = adapted[-1].head_.outputs(adapted.transform(texts))
            served.add(f"{architecture}-own", adapted, model, texts, logits)
    for pooling in ("max", "mean"):
        encoder = TransformerEncoder(bare, pooling=pooling, max_length=LENGTH)
        served.add(pooling, make_pipeline(encoder, fitted(Whitening(), encoder)), bare, TEXTS)
    add_sentence_folder(served, bare)
    add_modules(served, bare)
    add_cola(served, request)
    bert = next(job for job in served.jobs if job["folder"].endswith("bert-kept"))
    card = (served.folder / "bert-kept" / "README.md").read_text()
    bert["code"] = "\n".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL))
    return served.run()


def add_classifier(served, architecture):
    """A tiny classifier, adapted so that its logits are preserved."""
    model = save_model(served.folder / f"model-{architecture}", architecture)
    encoder, head = load_checkpoint(model, max_length=LENGTH)
    texts = texts_of(architecture)
    logits = head.outputs(encoder.transform(texts))
    kept = make_pipeline(encoder, fitted(LogitPreservingWhitening(head), encoder))
    served.add(f"{architecture}-kept", kept, model, texts, logits)
    return model, encoder, texts


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A tiny BERT without a classifier."""
    return save_model(tmp_path_factory.mktemp("bare"), kind="AutoModel")


def add_sentence_folder(served, bare):
    """A sentence-transformers folder with its own length, lower case and normalisation."""
    from sentence_transformers.sentence_transformer import modules

    first = modules.Transformer(str(bare), do_lower_case=True)
    parts = [first, modules.Pooling(16, ("mean", "max")), modules.Normalize()]
    model = library.SentenceTransformer(modules=parts, device="cpu")
    model.max_seq_length = LENGTH
    model.save(str(served.folder / "sentence"))
    encoder = TransformerEncoder(served.folder / "sentence")
    texts = [text.upper() for text in TEXTS]
    pipeline = make_pipeline(encoder, fitted(Whitening(n_components=4), encoder))
    served.add("sentence-adapted", pipeline, served.folder / "sentence", texts)


MODULES = ("dense", "norm", "truncated")


def add_modules(served, bare):
    """Folders with further modules and fewer columns; the adapters are served by their records."""
    from sentence_transformers.sentence_transformer import modules

    for name in MODULES:
        dense = modules.Dense(16, 12, activation_function=torch.nn.GELU())
        more = [modules.Normalize(), dense] if name == "dense" else [modules.LayerNorm(16)]
        parts = [modules.Transformer(str(bare)), modules.Pooling(16, "cls"), *more]
        cut = 5 if name == "truncated" else None
        model = library.SentenceTransformer(modules=parts, device="cpu", truncate_dim=cut)
        folder = served.folder / f"modules-{name}"
        model.save(str(folder))
        encoder = TransformerEncoder(folder)
        pipeline = make_pipeline(encoder, fitted(Whitening(shrinkage=0.1), encoder))
        save_adapter(pipeline, served.folder / f"saved-{name}")
        served.add(f"{name}-adapted", pipeline, folder, TEXTS)


def add_cola(served, request):
    """The fine-tuned MiniLM, where there is one."""
    try:
        shared = request.getfixturevalue("shared")
    except pytest.skip.Exception:
        return
    from isoadapt.datasets import make_acceptability

    encoder, head = load_checkpoint(shared / "models" / "cola-minilm", max_length=12)
    adapter = LogitPreservingWhitening(head)
    adapter.fit(np.load(shared / "embeddings" / "cola.npz")["E_train"])
    texts = list(make_acceptability(random_state=0).train_texts[:30])
    logits = head.outputs(encoder.transform(texts))
    pipeline = make_pipeline(encoder, adapter)
    served.add("cola", pipeline, shared / "models" / "cola-minilm", texts, logits)


class TestBothLibraries:
    @pytest.mark.parametrize("architecture", FEW)
    def test_vectors_and_logits_of_a_classifier(self, served, architecture):
        check_classifier(served, architecture)

    @pytest.mark.slow
    def test_vectors_and_logits_of_the_other_architectures(self, tmp_path):
        served, others = Served(tmp_path), [name for name in ARCHITECTURES if name not in FEW]
        for architecture in others:
            add_classifier(served, architecture)
        served.run_in_a_process()
        for architecture in others:
            check_classifier(served, architecture)

    @pytest.mark.parametrize("architecture", ["bert", "modernbert"])
    def test_the_adapters_own_head_becomes_the_classifier(self, served, architecture):
        served.check(f"{architecture}-own")

    @pytest.mark.parametrize("pooling", ["max", "mean"])
    def test_encoders_without_a_classifier(self, served, pooling):
        served.check(pooling)

    def test_a_sentence_transformers_folder_keeps_its_modules(self, served):
        served.check("sentence-adapted")
        assert served.found("sentence-adapted")["length"] == LENGTH

    @pytest.mark.parametrize("name", MODULES)
    def test_further_modules_and_fewer_columns(self, served, name, tmp_path):
        served.check(f"{name}-adapted")
        vectors, _ = served.expected[f"{name}-adapted"]
        read = TransformerEncoder(served.folder / f"{name}-adapted", device="cpu").transform(TEXTS)
        np.testing.assert_allclose(read, vectors, atol=1e-4 * np.abs(vectors).max())
        model, adapter = (served.folder / f"{kind}-{name}" for kind in ("modules", "saved"))
        again = to_sentence_transformer(load_adapter(adapter), model, tmp_path / "again")
        for file in ("modules.json", "model.safetensors", "1_Pooling/config.json"):
            assert (again / file).read_bytes() == (
                served.folder / f"{name}-adapted" / file
            ).read_bytes()
        config = model / "config_sentence_transformers.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"truncate_dim": 4}))
        with pytest.raises(ValueError, match=r"fitted to vectors with .*|have width 4"):
            to_sentence_transformer(load_adapter(adapter), model, tmp_path / "other")

    def test_the_real_classifier(self, served, shared):
        served.check("cola")


def check_classifier(served, architecture):
    """Vectors and logits are those of the pipeline, and the weights those of the checkpoint."""
    served.check(f"{architecture}-kept")
    assert served.found(f"{architecture}-kept")["length"] == LENGTH
    before = load_file(served.folder / f"model-{architecture}" / "model.safetensors")
    after = load_file(served.folder / f"{architecture}-kept" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before), architecture


@pytest.fixture(scope="module")
def classifier(checkpoint):
    """Encoder of the tiny BERT classifier, and a whitening that preserves its logits."""
    encoder, head = load_checkpoint(checkpoint)
    return encoder, fitted(LogitPreservingWhitening(head), encoder)


def vectors_of(folder):
    return library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def logits_of(folder):
    """The logits that transformers computes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    options = {"padding": True, "truncation": True, "max_length": LENGTH}
    with torch.inference_mode():
        return model(**tokenizer(TEXTS, **options, return_tensors="pt")).logits.numpy()


class TestFolder:
    def test_the_card_tells_both_uses_and_what_was_measured(self, served):
        both, alone = (
            (served.folder / name / "README.md").read_text() for name in ("bert-kept", "mean")
        )
        for card in (both, alone):
            assert "# " in card
            assert "SentenceTransformer(" in card
            assert re.search(r"Largest differences: cosines \d\.\de-\d\d", card)
            assert str(served.folder) not in card
        assert "LogitPreservingWhitening" in both
        assert "pipeline(" in both
        assert re.search(r"logits \d\.\de-\d\d \(relative\)", both)
        assert "text-classification" not in alone

    def test_saved_adapters_and_adapted_encoders(self, checkpoint, classifier, tmp_path):
        encoder, adapter = classifier
        save_adapter(adapter, tmp_path / "adapter", base_model=encoder)
        saved = load_adapter(tmp_path / "adapter")
        to_sentence_transformer(saved, checkpoint, tmp_path / "m", normalize=True)
        expected = adapter.transform(encoder.transform(TEXTS))
        found = vectors_of(tmp_path / "m")
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(cosines(found), cosines(expected), atol=1e-5)
        model = AdaptedEncoder(checkpoint, LogitPreservingWhitening(shrinkage=0.1)).fit(ROWS)
        to_sentence_transformer(model, checkpoint, tmp_path / "m", overwrite=True)
        np.testing.assert_allclose(vectors_of(tmp_path / "m"), model.transform(TEXTS), atol=1e-4)

    def test_without_a_head_the_classifier_stays(self, checkpoint, classifier, tmp_path):
        adapter = fitted(Whitening(), classifier[0])
        to_sentence_transformer(adapter, checkpoint, tmp_path / "m", pooling="head_input")
        after = load_checkpoint(tmp_path / "m")[1]
        np.testing.assert_array_equal(after.coef_, load_checkpoint(checkpoint)[1].coef_)

    def test_the_pooling_of_an_adapter_alone(self, checkpoint, tmp_path):
        """It is not recorded, so it is either given or assumed with a warning."""
        encoder = TransformerEncoder(checkpoint, pooling="mean", max_length=LENGTH)
        adapter = fitted(Whitening(), encoder)
        given = {"pooling": "mean", "max_length": LENGTH}
        with warnings.catch_warnings(action="error", category=UserWarning):
            to_sentence_transformer(adapter, checkpoint, tmp_path / "m", **given)
        expected = adapter.transform(encoder.transform(TEXTS))
        np.testing.assert_allclose(vectors_of(tmp_path / "m"), expected, atol=1e-4)
        with pytest.warns(UserWarning, match=r"records no pooling.*pooling='head_input'") as caught:
            to_sentence_transformer(adapter, checkpoint, tmp_path / "m", overwrite=True)
        assert caught[0].filename == __file__
        assert "pooling='head_input'" in (tmp_path / "m" / "README.md").read_text()
        save_adapter(adapter, tmp_path / "adapter", base_model=encoder)
        saved = load_adapter(tmp_path / "adapter")
        with warnings.catch_warnings(action="error", category=UserWarning):
            to_sentence_transformer(saved, checkpoint, tmp_path / "m", overwrite=True)
        assert "pooling='mean'" in (tmp_path / "m" / "README.md").read_text()

    def test_the_checkpoints_head_tells_the_pooling(self, checkpoint, classifier, tmp_path):
        with warnings.catch_warnings(action="error", category=UserWarning):
            to_sentence_transformer(classifier[1], checkpoint, tmp_path / "m")

    def test_pooled_vectors_of_a_classifier_leave_the_classifier_as_it_is(
        self, checkpoint, tmp_path
    ):
        encoder = TransformerEncoder(checkpoint, pooling="mean")
        pipeline = make_pipeline(encoder, fitted(Whitening(head="logistic"), encoder, LABELS))
        to_sentence_transformer(pipeline, checkpoint, tmp_path / "m")
        np.testing.assert_allclose(vectors_of(tmp_path / "m"), pipeline.transform(TEXTS), atol=1e-4)
        np.testing.assert_array_equal(logits_of(tmp_path / "m"), logits_of(checkpoint))
        assert "predictions are unchanged" in (tmp_path / "m" / "README.md").read_text()


UNLIKE = {  # sentence-transformers computes other vectors, or none
    **dict.fromkeys(("fnet", "mobilebert", "yoso", "longformer"), "differ"),
    "convbert": "by more than rounding",  # a warning
    **dict.fromkeys(("bart", "t5"), "decoder"),
    "big_bird": "not a pooling",
}


class TestDifferences:
    """What is compared before a folder appears: rounding passes, however amplified."""

    @pytest.mark.slow
    @pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
    def test_fit_and_export_at_defaults(self, tmp_path, architecture):
        folder = save_model(tmp_path / "model", architecture)
        model = AdaptedEncoder(folder, LogitPreservingWhitening()).fit(ROWS)
        if (match := UNLIKE.get(architecture)) is None:
            written = to_sentence_transformer(model, folder, tmp_path / "out")
            vectors = library.SentenceTransformer(str(written), device="cpu").encode(ROWS[:20])
            assert np.abs(cosines(vectors) - cosines(model.transform(ROWS[:20]))).max() < 1e-4
        elif architecture == "convbert":
            with pytest.warns(UserWarning, match=match):
                to_sentence_transformer(model, folder, tmp_path / "out")
        else:
            with pytest.raises(ValueError, match=match):
                to_sentence_transformer(model, folder, tmp_path / "out")

    def test_an_adapter_may_amplify_rounding(self, checkpoint, classifier, tmp_path, monkeypatch):
        encoder = classifier[0]
        adapter = Whitening(shrinkage=1e-9).fit(encoder.transform(ROWS))
        own_rng = np.random.default_rng(0)  # whatever other tests draw

        def perturbed(self, texts, **options):
            """Move the vectors as a relative change of 8e-7 before the adapter would."""
            vectors = encoder.transform(texts).astype(np.float64)
            noise = own_rng.normal(size=vectors.shape)
            noise *= 8e-7 * np.linalg.norm(vectors) / np.linalg.norm(noise)
            return (adapter.transform(vectors + noise)).astype(np.float32)

        monkeypatch.setattr(library.SentenceTransformer, "encode", perturbed)
        written = to_sentence_transformer(
            adapter, checkpoint, tmp_path / "out", pooling="head_input"
        )
        card = (written / "README.md").read_text()
        assert float(re.search(r"cosines ([\d.e-]+)", card)[1]) > 1e-4
        assert "The folder differs by more" not in card

    def test_more_than_rounding_is_a_warning(self, checkpoint, classifier, tmp_path, monkeypatch):
        encode = library.SentenceTransformer.encode

        def noisy(self, texts, **options):
            vectors = encode(self, texts, **options)
            noise = np.random.default_rng(0).normal(size=vectors.shape)
            return vectors * (1 + 2e-3 * noise).astype(vectors.dtype)

        monkeypatch.setattr(library.SentenceTransformer, "encode", noisy)
        with pytest.warns(UserWarning, match=r"by more than rounding \(cosines .*are the same"):
            written = to_sentence_transformer(classifier[1], checkpoint, tmp_path / "out")
        assert "The folder differs by more, without" in (written / "README.md").read_text()

    def test_another_neighbour_or_prediction_is_an_error(self):
        texts, angles = (
            TEXTS[:4],
            np.array([0.0, 0.100, -0.101, 2.0]),
        )  # the first vector's neighbours nearly tie
        moved, vectors = (
            np.column_stack([np.cos(turned), np.sin(turned)])
            for turned in (angles - [0.001, 0, 0, 0], angles)
        )
        with pytest.raises(ValueError, match="nearest neighbours"):
            compared(
                {"vectors": [moved]}, None, Expected(texts, vectors, None, None, 1e-6, padded=False)
            )
        logits = np.array([[1.0, 1.001], [3.0, -1.0]])
        found = {"logits": [logits - [0, 0.002]]}
        with pytest.raises(ValueError, match="predictions of the exported model"):
            compared(found, None, Expected(texts[:2], None, logits, None, 1e-6, padded=False))
        check = compared(found, None, Expected(texts[:2], None, logits, None, 1e-3, padded=False))
        assert check.differences == {"logits": pytest.approx(0.002 / 3)}


class TestErrors:
    @pytest.fixture(autouse=True)
    def nothing_is_written(self, tmp_path):
        yield
        assert not (tmp_path / "out").exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]

    def refuse(self, tmp_path, adapter, model, match, error=ValueError):
        with pytest.raises(error, match=match):
            to_sentence_transformer(adapter, model, tmp_path / "out")

    def test_adapters_that_are_not_affine(self, checkpoint, classifier, tmp_path):
        flow = fitted(FlowAdapter(max_epochs=1), classifier[0])
        self.refuse(tmp_path, flow, checkpoint, "not an affine map.*AdaptedEncoder")
        self.refuse(tmp_path, Whitening(), checkpoint, "not fitted", NotFittedError)

    def test_vectors_of_something_else(self, checkpoint, bare, classifier, tmp_path):
        encoder, adapter = classifier
        self.refuse(tmp_path, make_pipeline(encoder, adapter), bare, "no weights for classifier")
        other = save_model(tmp_path / "other", num_labels=4)
        self.refuse(tmp_path, make_pipeline(encoder, adapter), other, "another checkpoint")
        narrow = Whitening().fit(rng.normal(size=(40, 5)))
        self.refuse(tmp_path, narrow, checkpoint, "n_features_in_=5.*width 16")
        encoder = TransformerEncoder(checkpoint, pooling="mean", layer=1)
        pipeline = make_pipeline(encoder, fitted(Whitening(), encoder))
        self.refuse(tmp_path, pipeline, checkpoint, "layer=1.*last layer")
        save_adapter(pipeline[-1], tmp_path / "adapter", base_model=encoder)
        saved = load_adapter(tmp_path / "adapter")
        self.refuse(tmp_path, saved, checkpoint, "fitted to vectors with pooling='mean', layer=1")
        self.refuse(tmp_path, adapter, tmp_path / "none", "config.json", FileNotFoundError)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"pooling": "mean"}, "pooling='mean' and max_length=None were given, but"),
            ({"max_length": 9}, "max_length=9 were given, but the pipeline"),
            ({"pooling": "sum"}, "'pooling' parameter .* must be a str among"),
        ],
    )
    def test_settings_of_the_encoder(self, checkpoint, classifier, tmp_path, options, match):
        encoder, adapter = classifier
        alone = options.get("pooling") == "sum"
        given = adapter if alone else make_pipeline(encoder, adapter)
        with pytest.raises(ValueError, match=match):
            to_sentence_transformer(given, checkpoint, tmp_path / "out", **options)

    @pytest.mark.parametrize(
        ("architecture", "options", "match"),
        [
            ("bart", {}, "head of Bart.*: the decoder follows the encoder; serve it with"),
            ("t5", {}, "head of T5.*: the decoder follows.*pooling='mean', or serve it with"),
            ("longformer", {}, "cosines.*: the exported form cannot compute .*; serve it"),
            ("funnel", {}, "head of Funnel.*: it is not a pooling of hidden states"),
            ("modernbert", {"norm_eps": 1e-3}, "eps=0.001"),
            ("fnet", {}, "cosines .* differ"),
        ],
    )
    def test_architectures_that_sentence_transformers_cannot_express(
        self, tmp_path, architecture, options, match
    ):
        model = save_model(tmp_path / "model", architecture, **options)
        encoder, head = load_checkpoint(model)
        adapter = fitted(LogitPreservingWhitening(head), encoder)
        self.refuse(tmp_path, adapter, model, match)

    def test_states_of_an_encoder_before_a_decoder(self, tmp_path):
        encoder = TransformerEncoder(save_model(tmp_path / "model", "bart"), pooling="mean")
        model = make_pipeline(encoder, fitted(Whitening(), encoder))
        match = "pooled states of the encoder of Bart.*: the decoder follows the encoder; serve"
        self.refuse(tmp_path, model, tmp_path / "model", match)

    def test_a_wrong_folder_is_not_published(self, checkpoint, classifier, tmp_path, monkeypatch):
        encode = library.SentenceTransformer.encode
        shifted = lambda self, *texts, **options: encode(self, *texts, **options) + 1  # noqa: E731
        monkeypatch.setattr(library.SentenceTransformer, "encode", shifted)
        self.refuse(tmp_path, classifier[1], checkpoint, "cosines of the exported model differ by")

    def test_sentence_transformers_is_needed(self, checkpoint, classifier, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        match = r"pip install \"isoadapt\[st\]\""
        self.refuse(tmp_path, classifier[1], checkpoint, match, ImportError)

    def test_merging_into_an_encoder_names_the_other_export(self, bare, classifier, tmp_path):
        encoder = TransformerEncoder(bare)
        adapter = fitted(Whitening(), encoder)
        with pytest.raises(ValueError, match=r"no classifier.*to_sentence_transformer"):
            merge_into_checkpoint(adapter, bare, tmp_path / "out")
