"""The last layers of another encoder on aligned states of tokens."""

import copy
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import normalize

from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder
from isoadapt.encoders import release
from isoadapt.encoders._alignment import Part, align, check_tokens, last_layers
from isoadapt.encoders._texts import Texts
from isoadapt.interop import export_onnx, load_adapter, save_adapter
from tests.cli.command_line import succeed
from tests.refusals import refusals
from tests.tiny_models import (
    ARCHITECTURES,
    MORE_ARCHITECTURES,
    TEXTS,
    WORDS,
    logits_of,
    make_model,
    make_tokenizer,
    mostly_slow,
    save_model,
    save_pair,
)

RNG = np.random.default_rng(0)
MANY = [" ".join(RNG.choice(WORDS, RNG.integers(2, 12))) for _ in range(60)]
EXACT = 1e-5  # ridge that is hardly felt


def encoder_of(model, architecture="bert", **parameters):
    return TransformerEncoder((model, make_tokenizer(architecture)), **parameters)


def aligned(encoder, teacher, n_layers=1, texts=MANY, weights=None, ridge=1e-3):
    weights = np.ones(len(texts)) if weights is None else weights
    part = Part(Texts(texts), weights, np.arange(len(texts)) % 5 == 0)
    own, other = encoder.open(), teacher.open()
    found = align(own, other, last_layers(other, n_layers), [part], ridge=ridge)
    return encoder._variant(pooling=found[0])


def permuted(model):
    """Return a BERT whose hidden units are in another order, with the same function."""
    order, model = torch.randperm(16, generator=torch.manual_seed(0)), copy.deepcopy(model)
    for name, weight in model.named_parameters():
        inner = "query" in name or "key" in name or "value" in name or "intermediate" in name
        if weight.dim() == 1 and not inner:
            weight.data = weight.data[order]
        elif weight.dim() == 2:
            reads = inner or "embeddings" in name
            weight.data = weight.data[:, order] if reads else weight.data[order]
    return model


@pytest.fixture(scope="module")
def bert():
    return make_model(kind="AutoModel", num_hidden_layers=3)


class TestOracles:
    @pytest.mark.parametrize(
        ("pooling", "n_layers"), [("auto", 1), ("auto", 2), ("auto", 3), ("cls", 1), ("max", 1)]
    )
    def test_of_the_teacher_itself_it_gives_the_teachers_vectors(self, bert, pooling, n_layers):
        teacher = encoder_of(bert, pooling=pooling)
        found = aligned(teacher, teacher, n_layers, ridge=EXACT).transform(TEXTS)
        np.testing.assert_allclose(found, normalize(teacher.transform(TEXTS)), atol=1e-4)

    def test_another_order_of_the_hidden_units_is_undone(self, bert):
        teacher, other = encoder_of(bert), encoder_of(permuted(bert))
        wanted = normalize(teacher.transform(TEXTS))
        assert np.abs(normalize(other.transform(TEXTS)) - wanted).max() > 0.1
        found = aligned(other, teacher, ridge=EXACT).transform(TEXTS)
        np.testing.assert_allclose(found, wanted, atol=1e-4)

    def test_weights_are_frequencies_of_texts(self, bert):
        own, teacher = encoder_of(make_model()), encoder_of(bert)
        weights = np.arange(len(MANY)) % 3 + 1.0
        repeated = [text for text, n in zip(MANY, weights, strict=True) for _ in range(int(n))]
        found, wanted = (
            aligned(own, teacher, **given).transform(TEXTS)
            for given in ({"weights": weights}, {"texts": repeated})
        )
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        assert np.abs(found - aligned(own, teacher).transform(TEXTS)).max() > 1e-3


# What the last layers of these read besides the states is not theirs alone.
UNLIKE = {"albert", "xlnet", "big_bird", "bart", "flaubert", "lilt", "longformer", "squeezebert"}
UNLIKE |= {"t5", "xlm", "jamba"}


@pytest.mark.parametrize(
    "architecture", mostly_slow(ARCHITECTURES | MORE_ARCHITECTURES, ARCHITECTURES)
)
def test_the_last_layer_of_an_architecture_is_run_alone_or_refused(architecture):
    teacher = encoder_of(make_model(architecture, kind="AutoModel"), architecture)
    opened = teacher.open()
    if architecture in UNLIKE:
        with pytest.raises(ValueError, match=r"layers|AutoModel|fails on"):
            last_layers(opened, 1)
        return
    found = teacher._variant(pooling=last_layers(opened, 1)).transform(TEXTS)
    np.testing.assert_allclose(found, normalize(teacher.transform(TEXTS)), atol=1e-5)


@pytest.fixture(scope="module")
def found(bert):
    return aligned(encoder_of(make_model()), encoder_of(bert))


class TestVectors:
    def test_the_input_of_the_head_stays_beside_them(self, found):
        head_input = encoder_of(make_model()).transform(TEXTS)
        vectors = found.transform(TEXTS)
        np.testing.assert_array_equal(vectors[:, :16], head_input)
        np.testing.assert_allclose(np.linalg.norm(vectors[:, 16:], axis=1), 1, atol=1e-6)
        names = found.get_feature_names_out()
        assert [names[0], names[-1]] == ["head_input_0", "aligned_15"]

    def test_they_do_not_depend_on_the_other_texts(self, found):
        alone = np.vstack([found.transform([text]) for text in TEXTS])
        np.testing.assert_allclose(found.transform(TEXTS), alone, atol=1e-5)

    def test_padding_on_the_left(self):
        model, tokenizer = make_model("llama", kind="AutoModel"), make_tokenizer("llama")
        right = TransformerEncoder((model, tokenizer))
        left = make_tokenizer("llama")
        left.padding_side = "left"
        left = TransformerEncoder((model, left))
        wanted = normalize(right.transform(TEXTS))
        found = aligned(left, right, ridge=EXACT).transform(TEXTS)
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_a_pickle_needs_no_teacher_and_changes_nothing(bert, tmp_path):
    folders = tmp_path / "own", tmp_path / "teacher"
    for model, folder in zip((make_model(), bert), folders, strict=True):
        save_pair(model, make_tokenizer(), folder)
    own, teacher = map(TransformerEncoder, folders)
    encoder = aligned(own, teacher)
    wanted, identity = encoder.transform(TEXTS), encoder.identity()
    content = pickle.dumps(encoder)
    shutil.rmtree(folders[1])
    release()
    loaded = pickle.loads(content)
    np.testing.assert_array_equal(loaded.transform(TEXTS), wanted)
    assert loaded.identity() == identity
    other = encoder._variant(pooling=aligned(own, encoder_of(bert), texts=MANY[:30]).pooling)
    assert other.identity() != identity


@pytest.fixture(scope="module")
def taught(bert, tmp_path_factory):
    """A model in which a layer of the teacher runs."""
    folder = save_model(tmp_path_factory.mktemp("own"))
    model = AdaptedEncoder(str(folder), TeacherReadout(), encoder_of(bert), general=None)
    return model.fit(MANY).set_params(teacher=None)


def test_an_adapter_folder_holds_the_layer(taught, tmp_path):
    loaded = load_adapter(save_adapter(taught, tmp_path / "a"))
    np.testing.assert_array_equal(loaded.transform(TEXTS), taught.transform(TEXTS))


@pytest.mark.parametrize("name", ["DetrModel", "AutoModel"])
def test_a_folder_with_another_class_is_refused(taught, tmp_path, name):
    encoder, adapter = (step for _, step in taught.pipeline_.steps)
    wrong = encoder._variant(pooling=replace(encoder.pooling, model_class=name))
    with pytest.raises(ValueError, match=name):
        save_adapter(make_pipeline(wrong, adapter), tmp_path / "a")


@pytest.mark.slow
def test_a_graph_gives_vectors_and_logits(taught, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    file = export_onnx(taught, tmp_path / "m" / "model.onnx")
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    tokens = make_tokenizer()([TEXTS[0]], return_tensors="np")
    given = {each.name: tokens[each.name] for each in session.get_inputs()}
    vectors, logits = session.run(["sentence_vector", "logits"], given)
    np.testing.assert_allclose(vectors, taught.transform([TEXTS[0]]), atol=1e-5)
    np.testing.assert_allclose(logits, logits_of(make_model(), [TEXTS[0]]), atol=1e-4)
    succeed("check", tmp_path / "m")


def test_the_state_of_the_process_has_no_effect(taught):
    wanted = taught.transform(TEXTS)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        np.testing.assert_array_equal(taught.transform(TEXTS), wanted)
    torch.set_default_dtype(torch.float64)
    try:
        np.testing.assert_array_equal(taught.transform(TEXTS), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_teacher_without_a_pooler_and_with_dead_units(tmp_path):
    """A classifier of RoBERTa has no pooler inside, and MiniLM has unused units."""
    classifier = make_model("roberta")
    last = classifier.roberta.encoder.layer[-1].output.LayerNorm
    last.weight.data[3], last.bias.data[3] = 1e-33, 1e-30
    teacher = encoder_of(classifier, "roberta", pooling="mean")
    own = encoder_of(make_model("roberta", num_labels=2), "roberta")
    model = AdaptedEncoder(own, TeacherReadout(), teacher, general=None).fit(MANY)
    assert np.abs(model.pipeline_["adapter"].map_.matrix).max() < 100
    copy_ = pickle.loads(pickle.dumps(model.pipeline_["encoder"].pooling))
    np.testing.assert_array_equal(
        own._variant(pooling=copy_).transform(TEXTS), model.pipeline_["encoder"].transform(TEXTS)
    )


def compare(teacher):
    check_tokens(encoder_of(make_model()).open(), teacher.open(), Texts(TEXTS))


SHORT = {"kind": "AutoModel", "max_position_embeddings": 8}
test_teachers_that_cannot_be_read = refusals(
    (lambda bert: last_layers(encoder_of(bert, pooling="readout").open(), 1), "last hidden state"),
    (lambda bert: last_layers(encoder_of(bert, layer=1).open(), 1), "last hidden state"),
    (lambda bert: last_layers(encoder_of(bert).open(), 4), "has only 3 layers"),
    (lambda bert: compare(encoder_of(bert, "gpt2")), "tokenizers"),
    (lambda _: compare(encoder_of(make_model(**SHORT))), "positions for 8 tokens.*max_length=64"),
    call=lambda call, bert: call(bert),
)


def test_states_of_another_width_are_refused(found):
    wide = encoder_of(make_model(hidden_size=32), pooling=found.pooling)
    with pytest.raises(ValueError, match="another model"):
        wide.transform(TEXTS)
