"""finetune_text_classifier: an ordinary checkpoint comes out, or nothing at all."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)

from isoadapt.finetune import _classifier, finetune_text_classifier
from isoadapt.finetune._classifier import learning_rate, length_batches

WORDS = ["good", "bad", "day", "night", "sun", "rain", "tea", "sea"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
QUICK = {"epochs": 1, "batch_size": 8, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Make a tiny BERT with random weights, without a head."""
    folder = tmp_path_factory.mktemp("model") / "base"
    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def data():
    """Texts of 1 to 6 words; the label says whether "good" is among them rather than "bad"."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 64)
    texts = []
    for label in labels:
        text = rng.choice(WORDS[2:], rng.integers(0, 6)).tolist()
        text.insert(rng.integers(0, len(text) + 1), "good" if label else "bad")
        texts.append(" ".join(text))
    return texts, labels


def outputs(folder, *texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        return model(**tokenizer(*texts, padding=True, return_tensors="pt")).logits


def weights(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_and_saves_an_ordinary_checkpoint(base, data, tmp_path):
    texts, labels = data
    options = QUICK | {"epochs": 12, "lr": 3e-3}
    folder = finetune_text_classifier(base, texts, labels, tmp_path / "out", **options)
    assert folder == tmp_path / "out"
    assert (outputs(folder, texts).argmax(1).numpy() == labels).mean() > 0.95
    assert next(iter(weights(folder).values())).dtype == torch.float32


def test_it_learns_from_the_second_text_of_a_pair(base, data, tmp_path):
    texts, labels = data
    pairs = pd.DataFrame({"a": ["tea"] * len(texts), "b": texts})
    options = QUICK | {"epochs": 12, "lr": 3e-3}
    folder = finetune_text_classifier(base, pairs, pd.Series(labels), tmp_path / "out", **options)
    predicted = outputs(folder, ["tea"] * len(texts), texts).argmax(1).numpy()
    assert (predicted == labels).mean() > 0.95


def test_names_of_classes_are_stored(base, data, tmp_path):
    texts, labels = data
    names = np.where(labels == 1, "acceptable", "zany").tolist()
    options = QUICK | {"epochs": 12, "lr": 3e-3}
    folder = finetune_text_classifier(base, texts, names, tmp_path / "out", **options)
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    assert config.id2label == {0: "acceptable", 1: "zany"}
    assert config.label2id == {"acceptable": 0, "zany": 1}
    predicted = [config.id2label[int(i)] for i in outputs(folder, texts).argmax(1)]
    assert np.mean(np.array(predicted) == names) > 0.95


def test_floats_are_predicted_by_one_output(base, data, tmp_path):
    texts, labels = data
    options = QUICK | {"epochs": 12, "lr": 3e-3}
    folder = finetune_text_classifier(base, texts, labels - 0.5, tmp_path / "out", **options)
    predicted = outputs(folder, texts)
    assert predicted.shape == (64, 1)
    assert np.corrcoef(predicted[:, 0], labels)[0, 1] > 0.9


def test_the_seed_decides(base, data, tmp_path):
    runs = {
        name: weights(
            finetune_text_classifier(base, *data, tmp_path / name, **QUICK | {"random_state": seed})
        )
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    }
    assert same(runs["a"], runs["b"])
    assert not same(runs["a"], runs["c"])


def test_weight_decay_is_a_tenth_of_the_learning_rate(base, data, tmp_path):
    runs = [
        weights(
            finetune_text_classifier(
                base, *data, tmp_path / str(decay), lr=1e-2, weight_decay=decay, **QUICK
            )
        )
        for decay in (None, 1e-3, 0.5)
    ]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_global_generators_stay_as_they_are(base, data, tmp_path):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    def seed():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = draw()
    seed()
    finetune_text_classifier(base, *data, tmp_path / "out", **QUICK)
    assert draw() == expected


def test_nothing_is_printed(base, data, tmp_path, capfd):
    finetune_text_classifier(base, *data, tmp_path / "out", **QUICK)
    assert capfd.readouterr() == ("", "")


def test_a_fitting_head_is_kept_and_any_other_replaced(base, data, tmp_path):
    texts, labels = data
    first = finetune_text_classifier(base, texts, labels, tmp_path / "first", **QUICK)
    again = finetune_text_classifier(first, texts, labels, tmp_path / "again", lr=1e-12, **QUICK)
    expected = weights(first)["classifier.weight"]
    torch.testing.assert_close(weights(again)["classifier.weight"], expected)
    three = finetune_text_classifier(
        first, texts, np.arange(64) % 3, tmp_path / "three", lr=1e-12, **QUICK
    )
    assert weights(three)["classifier.weight"].shape == (3, 32)


def test_half_precision_files_are_trained_in_single_precision(base, data, tmp_path):
    half = tmp_path / "half"
    BertModel.from_pretrained(base, dtype=torch.float16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    folder = finetune_text_classifier(half, *data, tmp_path / "out", **QUICK)
    assert {value.dtype for value in weights(folder).values()} == {torch.float32}


def test_an_interrupt_in_training_leaves_nothing(base, data, tmp_path, monkeypatch):
    steps = []

    def step(self, rows, optimiser):
        steps.append(rows)
        optimiser.step()
        if len(steps) == 3:
            raise KeyboardInterrupt
        return torch.zeros(())

    monkeypatch.setattr(_classifier._Loop, "_step", step)
    with pytest.raises(KeyboardInterrupt):
        finetune_text_classifier(base, *data, tmp_path / "out", **QUICK)
    assert len(steps) == 3
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_in_saving_leaves_what_was_there(base, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("kept")

    def save(self, folder, **options):
        (folder / "half").write_text("written")
        raise KeyboardInterrupt

    monkeypatch.setattr(BertModel.__bases__[0], "save_pretrained", save)
    with pytest.raises(KeyboardInterrupt):
        finetune_text_classifier(base, *data, out, overwrite=True, **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["config.json"]


def test_an_existing_folder_is_replaced_only_if_asked(base, data, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("old")
    (out / "vocab.txt").write_text("old")
    with pytest.raises(FileExistsError, match=r"not empty.*overwrite=True"):
        finetune_text_classifier(base, *data, out, **QUICK)
    finetune_text_classifier(base, *data, out, overwrite=True, **QUICK)
    assert not (out / "vocab.txt").exists()
    assert (out / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_is_never_replaced(base, data, tmp_path):
    (tmp_path / "out").write_text("file")
    with pytest.raises(FileExistsError, match="is a file"):
        finetune_text_classifier(base, *data, tmp_path / "out", overwrite=True, **QUICK)


def test_a_diverging_loss_is_reported(base, data, tmp_path, monkeypatch):
    def step(self, rows, optimiser):
        optimiser.step()
        return torch.tensor(torch.nan)

    monkeypatch.setattr(_classifier._Loop, "_step", step)
    with pytest.raises(FloatingPointError, match=r"lower lr=0\.1"):
        finetune_text_classifier(base, *data, tmp_path / "out", lr=0.1, **QUICK)


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        (["a", "b"], [0], ValueError, "texts has 2 rows and labels 1"),
        (["a", "b"], [1, 1], ValueError, "one class only"),
        (["a", "b"], ["x", "x"], ValueError, "one class only .x."),
        (["a", "b", "c"], [0, 2, 2], ValueError, "integers 0, 2; integer labels must be 0..C-1"),
        (["a", "b"], [-1, 1], ValueError, "integers -1, 1.*return_inverse"),
        (["a", "b"], [0.5, np.nan], ValueError, r"labels\[1\] is nan"),
        (["a", "b"], [[0], [1]], ValueError, r"shape \(2, 1\)"),
        (["a", "b"], np.array(["x", None], dtype=object), TypeError, "None .NoneType."),
        (["a", 3], [0, 1], TypeError, r"X\[1\] is a int"),
        ("a", [0, 1], TypeError, "pass a list of texts"),
        ([], [], ValueError, "no text"),
    ],
)
def test_texts_and_labels_that_cannot_be(base, tmp_path, texts, labels, error, message):
    with pytest.raises(error, match=message):
        finetune_text_classifier(base, texts, labels, tmp_path / "out", **QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["epochs", "lr", "batch_size", "max_length"])
def test_parameters_out_of_range_are_named(base, data, tmp_path, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter of finetune_text_classifier"):
        finetune_text_classifier(base, *data, tmp_path / "out", **QUICK | {name: 0})


def test_a_model_that_cannot_be_loaded(base, data, tmp_path):
    pickled = tmp_path / "pickled"
    AutoTokenizer.from_pretrained(base).save_pretrained(pickled)
    model = BertModel.from_pretrained(base)
    model.config.save_pretrained(pickled)
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"pickled.*safetensors"):
        finetune_text_classifier(pickled, *data, tmp_path / "out", **QUICK)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(1, 40))
def test_batches_hold_each_row_once(lengths, batch_size):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        batches = list(length_batches(lengths, batch_size))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // batch_size)
    assert max(map(len, batches)) <= batch_size


def test_batches_hold_rows_of_similar_length_and_come_in_random_order():
    lengths = [i % 50 + 1 for i in range(1000)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = (list(length_batches(lengths, 20)) for _ in range(2))
    assert max(max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in first) <= 1
    tops = [lengths[batch[0]] for batch in first]
    assert tops != sorted(tops)
    assert first != second


@given(st.integers(1, 1000), st.floats(0, 0.99))
def test_the_learning_rate_rises_to_one_and_falls_to_zero(steps, warmup):
    rates = [learning_rate(step, steps, warmup) for step in range(steps + 1)]
    top = int(np.argmax(rates))
    assert all(0 < rate <= 1 for rate in rates[:-1])
    assert rates[-1] == 0
    assert top <= warmup * steps + 1
    assert np.all(np.diff(rates[: top + 1]) > 0)
    assert np.all(np.diff(rates[top:]) < 0)
