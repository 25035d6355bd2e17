"""The layer report, compared with metrics of all tokens in memory; batches, limits and output."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from isoadapt import metrics
from isoadapt.encoders import LayerReport, TransformerEncoder, _layer_report, layer_report
from tests.tiny_models import ARCHITECTURES, PAIRS, TEXTS, make_model, make_tokenizer, save_model

pytestmark = pytest.mark.filterwarnings("ignore:.* different texts are")
CORPUS = [f"{one} {other}" for one in TEXTS for other in TEXTS]
FIGURES = ["isoscore", "isoscore_corrected", "ev1", "ev2", "ev3"]
FIGURES += ["anisotropy1", "mean_cosine", "two_nn"]


def live_model(architecture):
    return make_model(architecture), make_tokenizer(architecture)


def token_states(model, tokenizer, texts):
    """Hidden states of every token, without padding, one array (n, d) a layer, and their texts."""
    parts = []
    for text in texts:
        inputs = ([text],) if isinstance(text, str) else ([text[0]], [text[1]])
        encoded = tokenizer(*inputs, return_tensors="pt")
        if encoded["input_ids"].numel():
            with torch.inference_mode():
                output = model.base_model(**encoded, output_hidden_states=True)
            parts.append([states[0].double().numpy() for states in output.hidden_states])
    owners = np.repeat(np.arange(len(parts)), [len(layers[0]) for layers in parts])
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)], owners


def reference(X, owners):
    return {
        "isoscore": metrics.isoscore(X),
        "isoscore_corrected": metrics.isoscore(X, bias_corrected=True, groups=owners),
        "ev1": metrics.cumulative_explained_variance(X, k=1),
        "ev2": metrics.cumulative_explained_variance(X, k=2),
        "ev3": metrics.cumulative_explained_variance(X, k=3),
        "anisotropy1": metrics.anisotropy(X, k=1),
        "mean_cosine": metrics.mean_cosine_similarity(X),
    }


def assert_same(report, other, tolerance=1e-5):
    assert len(report) == len(other)
    for figures, wanted in zip(report, other, strict=True):
        assert (figures.layer, figures.n_tokens) == (wanted.layer, wanted.n_tokens)
        for name in FIGURES:
            value = pytest.approx(getattr(wanted, name), rel=tolerance, abs=tolerance, nan_ok=True)
            assert getattr(figures, name) == value, (name, figures.layer)


@pytest.mark.parametrize(
    ("architecture", "texts"),  # a decoder's tokenizer gives no tokens for ""
    [*((name, [text for text in TEXTS if text]) for name in ARCHITECTURES), ("bert", PAIRS)],
)
def test_every_architecture_equals_all_tokens_in_memory(architecture, texts):
    live = live_model(architecture)
    report = layer_report(live, texts)
    layers, owners = token_states(*live, texts)
    assert len(report) == len(layers) == 3
    for number, (figures, X) in enumerate(zip(report, layers, strict=True)):
        assert (figures.layer, figures.n_tokens) == (number, len(X))
        for name, value in reference(X, owners).items():
            assert getattr(figures, name) == pytest.approx(value, abs=1e-5), (name, number)


def test_a_text_without_tokens_counts_as_one_special_token():
    report = layer_report(live_model("gpt2"), ["", "the cat sat"])
    assert report[0].n_tokens == 4


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "xlnet"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
def test_neither_batches_nor_padding_matter(architecture, batch_tokens):
    live = live_model(architecture)
    wanted = layer_report(live, CORPUS, two_nn_tokens=100)
    encoder = TransformerEncoder(live, batch_tokens=batch_tokens)
    report = layer_report(encoder, CORPUS, two_nn_tokens=100)
    assert_same(report, wanted, 1e-4)
    assert all(figures.two_nn > 0 for figures in report)


def test_two_nn_of_few_tokens_uses_all_of_them():
    live = live_model("bert")
    for figures, X in zip(layer_report(live, CORPUS), token_states(*live, CORPUS)[0], strict=True):
        distinct = X[np.unique(np.round(X, 4), axis=0, return_index=True)[1]]
        assert figures.two_nn == pytest.approx(metrics.two_nn(distinct), rel=1e-4)


def test_the_shared_beginnings_of_a_decoder_are_one_token():
    # All texts have the same beginning, whose tokens differ by rounding between batches.
    texts = ["the cat sat on " + text for text in CORPUS]
    live = live_model("gpt2")
    reports = [layer_report(TransformerEncoder(live, batch_tokens=b), texts) for b in (1, 500)]
    assert_same(*reports, 1e-4)


def test_folder_name_live_model_and_encoder_are_taken(checkpoint):
    report = layer_report(checkpoint, TEXTS)
    assert_same(layer_report(str(checkpoint), TEXTS), report)
    assert_same(layer_report(TransformerEncoder(checkpoint, pooling="cls"), TEXTS), report)
    assert_same(layer_report((make_model(), make_tokenizer()), TEXTS), report)


def test_settings_of_the_encoder_are_used(checkpoint):
    report = layer_report(TransformerEncoder(checkpoint, max_length=4), TEXTS)
    lengths = [len(make_tokenizer()(text)["input_ids"]) for text in TEXTS]
    assert report[0].n_tokens == sum(min(4, n) for n in lengths)
    with pytest.raises(ValueError, match="max_length=65"):
        layer_report(TransformerEncoder(checkpoint, max_length=65), TEXTS)
    with pytest.raises(ValueError, match="batch_tokens"):
        layer_report(TransformerEncoder(checkpoint, batch_tokens=0), TEXTS)


def test_a_model_without_head(tmp_path):
    save_model(tmp_path, kind="AutoModel")
    assert [figures.layer for figures in layer_report(tmp_path, TEXTS)] == [0, 1, 2]


# Limits


@pytest.mark.parametrize("block", [1, 3, 1024])
def test_max_tokens_is_filled_with_whole_texts_in_order(monkeypatch, block):
    monkeypatch.setattr(_layer_report, "_BLOCK", block)
    live = live_model("bert")
    ends = np.cumsum([len(live[1](text)["input_ids"]) for text in TEXTS])
    for max_tokens in (ends[0], ends[2] - 1, ends[2], ends[2] + 1, ends[-1], 10**6):
        n_texts = int((ends <= max_tokens).sum())
        report = layer_report(live, TEXTS, max_tokens=int(max_tokens))
        assert (report.n_texts, report[0].n_tokens) == (n_texts, ends[n_texts - 1])
        assert report[0].n_tokens <= max_tokens
        assert_same(report, layer_report(live, TEXTS[:n_texts]))


def test_the_sample_is_the_tokens_of_smallest_keys_whatever_the_batches():
    sizes, seen = (7, 100, 33, 400), 0
    sample, generator = _layer_report._Sample(50, 3), torch.Generator().manual_seed(3)
    keys = torch.cat([torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes])
    for n in sizes:
        slots = sample.reserve(n)
        numbers = torch.arange(seen, seen + n)
        states = torch.stack([numbers, -numbers])[:, :, None].float()
        for part in torch.randperm(n).split(13):
            sample.put(slots[part], states[:, part])
        seen += n
        first, second = (layer[:, 0] for layer in sample.layers())
        torch.testing.assert_close(first, -second)
        wanted = keys[:seen].topk(min(seen, 50), largest=False).indices
        assert sorted(first.tolist()) == sorted(wanted.tolist())
        assert sample.states.shape == (2, 50, 1)


def test_batches_are_halved_when_memory_runs_out(monkeypatch):
    live = live_model("bert")
    wanted = layer_report(live, CORPUS)
    embed = _layer_report._Reader._embed

    def narrow(self, batch):
        if len(batch["input_ids"]) > 2:
            raise torch.OutOfMemoryError
        return embed(self, batch)

    monkeypatch.setattr(_layer_report._Reader, "_embed", narrow)
    assert_same(layer_report(live, CORPUS), wanted)

    def never(self, batch):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(_layer_report._Reader, "_embed", never)
    with pytest.raises(torch.OutOfMemoryError, match="lower max_length"):
        layer_report(live, CORPUS)


# Output


def test_the_report_is_a_sequence_and_prints_as_a_table():
    report = layer_report(live_model("bert"), CORPUS)
    assert isinstance(report, LayerReport)
    assert [figures.layer for figures in report] == [0, 1, 2]
    assert report[-1] is report.layers[2]
    assert report[:2] == report.layers[:2]
    title, header, *rows = str(report).splitlines()
    assert repr(report) == str(report)
    assert title.startswith(f"LayerReport: {report[0].n_tokens} tokens × 16 from 64 texts")
    assert len({len(line) for line in (header, *rows)}) == 1
    for figures, row in zip(report, rows, strict=True):
        cells = [f"{getattr(figures, name):.4g}" for name in FIGURES]
        assert row.split() == [str(figures.layer), *cells]


def test_frame_and_dict_hold_every_figure():
    report = layer_report(live_model("bert"), CORPUS)
    frame = report.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.index.name == "layer"
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain == report.to_dict()
    assert (plain["n_texts"], plain["n_features"]) == (64, 16)
    for figures, row in zip(report, plain["layers"], strict=True):
        for name in ["n_tokens", *FIGURES]:
            assert row[name] == frame.loc[figures.layer, name] == getattr(figures, name)


@pytest.mark.filterwarnings("default:.* different texts are")
def test_few_texts_give_a_warning():
    with pytest.warns(
        UserWarning, match="2 different texts are fewer than 48 = 3 × n_features"
    ) as record:
        layer_report(live_model("bert"), ["the cat", "a dog", "the cat"])
    assert record[0].filename == __file__


def test_texts_with_equal_tokens_count_once():
    live = live_model("bert")  # which knows no lions and no zebras
    lions, zebras = ([f"{text} {animal}" for text in CORPUS] for animal in ("lion", "zebra"))
    both = layer_report(live, [*lions, *zebras])
    for figures, wanted in zip(both, layer_report(live, lions), strict=True):
        assert figures.isoscore_corrected == pytest.approx(wanted.isoscore_corrected, abs=1e-5)


def test_figures_that_are_not_defined_are_nan():
    three = layer_report(live_model("gpt2"), ["the cat sat"])
    assert math.isnan(three[1].isoscore_corrected)
    assert math.isnan(three[1].two_nn)
    assert 0 <= three[1].isoscore <= 1


def test_a_constant_layer_has_no_spectrum():
    model, tokenizer = live_model("gpt2")
    for table in (model.transformer.wte, model.transformer.wpe):
        table.weight.data[:] = table.weight.data[:1]
    report = layer_report((model, tokenizer), TEXTS)
    for figures in report:
        assert math.isnan(figures.isoscore)
        assert math.isnan(figures.ev1)
        assert math.isnan(figures.two_nn)
        assert figures.mean_cosine == pytest.approx(1, abs=1e-6)


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 1}, "max_tokens == 1, must be >= 2"),
        ({"max_tokens": 1e5}, "max_tokens must be an instance of"),
        ({"two_nn_tokens": 3}, "two_nn_tokens == 3, must be >= 4"),
        ({"random_state": -1}, "random_state == -1, must be >= 0"),
        ({"random_state": None}, "random_state must be an instance of"),
        ({"max_tokens": 7}, r"max_tokens=7 is enough for 0 .* has 8 token\(s\).*raise max_tokens"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        layer_report(live_model("bert"), TEXTS, **options)


def test_anything_but_texts_is_refused():
    with pytest.raises(TypeError, match="X is a single str"):
        layer_report(live_model("bert"), "one text")
    with pytest.raises(TypeError, match="model is a BertForSequenceClassification"):
        layer_report(make_model(), TEXTS)
