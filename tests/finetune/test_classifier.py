"""finetune_text_classifier: an ordinary checkpoint comes out, or nothing at all."""

import io
import json
import random
import shutil
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_sample_weight
from torch.utils.data import Subset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertModel

from isoadapt import load_checkpoint
from isoadapt.finetune import IsotropyTrainer, add_isobn, finetune_text_classifier
from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss, SpectrumControlLoss
from isoadapt.metrics import isoscore
from tests.finetune.runs import Items, Stream
from tests.refusals import refusals
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model, save_pair

QUICK = {"epochs": 1, "batch_size": 8, "random_state": 0, "device": "cpu"}
LONGER = QUICK | {"epochs": 8, "lr": 1e-2, "batch_size": 16}


def make_texts(n):
    """Texts of 1 to 6 words; the label says whether "cat" is among them rather than "dog"."""
    rng = np.random.default_rng(0)
    labels, texts = rng.integers(0, 2, n), []
    for label in labels:
        text = rng.choice(WORDS[4:], rng.integers(0, 6)).tolist()
        text.insert(rng.integers(0, len(text) + 1), "cat" if label else "dog")
        texts.append(" ".join(text))
    return texts, labels


TEXTS, LABELS = make_texts(64)
SOME = ["cat " * 100, *TEXTS[1:16]], LABELS[:16]  # the first one is longer than the model
TRAINED = {"texts": SOME[0], "labels": SOME[1]} | QUICK


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny BERT of half precision with random weights, without a head."""
    model, folder = make_model(kind="AutoModel"), tmp_path_factory.mktemp("model") / "base"
    return save_pair(model.half(), make_tokenizer(), folder)


@pytest.fixture(scope="module")
def tuned(base, tmp_path_factory):
    """What a quick run makes of it; do not write to it."""
    return finetune_text_classifier(base, *SOME, tmp_path_factory.mktemp("run") / "out", **QUICK)


@pytest.fixture
def runs(monkeypatch):
    """Collect the trainers instead of letting them train."""
    collected = []
    monkeypatch.setattr(IsotropyTrainer, "train", lambda self: collected.append(self))
    return collected


def outputs(folder, *texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        options = {"truncation": True, "max_length": 64, "return_tensors": "pt"}
        return model(**tokenizer(*texts, padding=True, **options)).logits


def weights(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


# --- what comes out -------------------------------------------------------------------------------


def test_it_learns_pairs_with_named_classes_and_saves_an_ordinary_checkpoint(base, tmp_path):
    pairs = pd.DataFrame({"a": ["tree"] * 64, "b": TEXTS})
    names = pd.Series(np.where(LABELS == 1, "acceptable", "zany"))
    folder = finetune_text_classifier(base, pairs, names, tmp_path / "out", **LONGER)
    assert folder == tmp_path / "out"
    before, config = (AutoConfig.from_pretrained(each) for each in (base, folder))
    assert config.id2label == {0: "acceptable", 1: "zany"}
    assert config.label2id == {"acceptable": 0, "zany": 1}
    predicted = [config.id2label[int(i)] for i in outputs(folder, ["tree"] * 64, TEXTS).argmax(1)]
    assert np.mean(np.array(predicted) == names) > 0.95
    assert {value.dtype for value in weights(folder).values()} == {torch.float32}
    before, after = before.to_dict(), config.to_dict()
    changed = {name for name in after if name[0] != "_" and after[name] != before.get(name)}
    labels = {"id2label", "label2id", "problem_type"}
    assert changed == labels | {"architectures", "dtype"}


def test_floats_are_learned_by_one_output(base, tmp_path):
    folder = finetune_text_classifier(base, TEXTS, LABELS - 0.5, tmp_path / "out", **LONGER)
    predicted = outputs(folder, TEXTS)
    assert predicted.shape == (64, 1)
    assert np.mean((predicted[:, 0] > 0).numpy() == LABELS) > 0.9


def test_a_single_step_trains_and_a_terminal_shows_a_bar(base, tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    options = QUICK | {"lr": 1e-3, "batch_size": 16, "verbose": 1}
    out = finetune_text_classifier(base, TEXTS[:8], LABELS[:8], tmp_path / "out", **options)
    assert "Fine-tuning: 100%" in terminal.getvalue()
    after, before = weights(out), BertModel.from_pretrained(base, dtype=torch.float32).state_dict()
    changes = [(after[f"bert.{name}"] - value).abs().max() for name, value in before.items()]
    assert max(changes) > 1e-4


def test_the_seed_decides_and_global_generators_stay(base, tuned, tmp_path, capfd, monkeypatch):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    def seed():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = draw()
    seed()
    again = finetune_text_classifier(base, *SOME, tmp_path / "again", **QUICK)
    assert capfd.readouterr() == ("", "")
    assert draw() == expected
    assert same(weights(again), weights(tuned))
    monkeypatch.setattr(IsotropyTrainer, "train", lambda self: None)
    options = QUICK | {"random_state": 4}
    other = finetune_text_classifier(base, *SOME, tmp_path / "other", **options)
    heads = [weights(folder)["classifier.weight"] for folder in (other, tuned)]
    assert (heads[0] - heads[1]).abs().max() > 1e-2  # more than two steps of training change


def test_a_penalty_changes_the_training_in_the_direction_of_its_weight(base, tmp_path):
    # Dropout would add a variance of its own in training.
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertModel.from_pretrained(base, **none)
    still = save_pair(model, make_tokenizer(), tmp_path / "still")
    options = QUICK | {"epochs": 3, "lr": 1e-3, "batch_size": 32, "penalty": "isotropy-layer"}
    data, scores = (still, TEXTS, LABELS), []
    for lam in (-1.0, 1.0):
        folder = finetune_text_classifier(*data, tmp_path / str(lam), lam=lam, **options)
        encoder, _ = load_checkpoint(folder, device="cpu")
        scores.append(isoscore(encoder.transform(TEXTS)))
    assert scores[1] > 1.2 * scores[0]


def test_several_labels_train_a_sigmoid_for_each_column_of_a_table(base, tmp_path):
    table = pd.DataFrame({"of a cat": LABELS, "of an animal": True})
    options = LONGER | {"epochs": 16}
    folder = finetune_text_classifier(base, TEXTS, table, tmp_path / "out", **options)
    assert AutoConfig.from_pretrained(folder).problem_type == "multi_label_classification"
    encoder, head = load_checkpoint(folder, device="cpu")
    assert head.multi_label_
    assert head.classes_.tolist() == [*table]
    predicted = head.predict(encoder.transform(TEXTS))
    assert ((predicted == table).mean() > 0.95).all()
    np.testing.assert_array_equal(predicted, outputs(folder, TEXTS) > 0)


# --- what it may start from -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_outputs", "start", "labels"),
    [
        (4, "single_label_classification", np.array(["x", "y", "z", "x"] * 4)),
        (2, "regression", np.arange(16) % 3),
        (3, "multi_label_classification", LABELS[:16] / 2),
    ],
)
def test_a_checkpoint_of_any_task_may_be_the_start(n_outputs, start, labels, tmp_path, runs):
    start = save_model(tmp_path / "base", num_labels=n_outputs, problem_type=start)
    out = finetune_text_classifier(start, SOME[0], labels, tmp_path / "out", **QUICK)
    config, names = AutoConfig.from_pretrained(out), ["LABEL_0"]
    if labels.dtype.kind != "f":
        names = [name if isinstance(name, str) else f"LABEL_{name}" for name in np.unique(labels)]
    kind = "regression" if len(names) == 1 else "single_label_classification"
    assert config.problem_type == kind
    assert config.id2label == dict(enumerate(names))
    assert config.label2id == {name: i for i, name in config.id2label.items()}
    encoder, head = load_checkpoint(out)
    assert head.predict(encoder.transform(TEXTS[:3])).dtype.kind == labels.dtype.kind


@pytest.mark.parametrize("labels", [["Positive", "Negative", "Mixed"], ["0", "1", "2"]])
def test_classes_of_the_checkpoint_keep_their_outputs(labels, tmp_path, runs):
    """Names or ids that are the checkpoint's are not sorted anew under its head."""
    names = dict(enumerate(["Positive", "Negative", "Mixed"]))
    start = save_model(tmp_path / "base", num_hidden_layers=1, id2label=names)
    given = [labels[number % 3] for number in range(16)]
    out = finetune_text_classifier(start, SOME[0], given, tmp_path / "out", **QUICK)
    assert AutoConfig.from_pretrained(out).id2label == dict(enumerate(labels))
    assert [row["labels"] for row in runs[0].train_dataset] == [i % 3 for i in range(16)]
    assert same(weights(out), weights(start))


def test_other_integers_are_names_and_two_whole_floats_are_classes(base, tmp_path, runs):
    for labels, names in (([1, 2, 5, 1] * 4, "125"), ([1.0, 3.0] * 8, "13")):
        with warnings.catch_warnings(record=True) as caught:
            out = finetune_text_classifier(base, SOME[0], labels, tmp_path / names, **QUICK)
        assert [*AutoConfig.from_pretrained(out).id2label.values()] == [*names]
        assert any("taken as two classes" in str(it.message) for it in caught) == (len(names) == 2)


def test_a_checkpoint_with_isobn_is_trained_on_without(tuned, tmp_path, runs):
    tokenizer = AutoTokenizer.from_pretrained(tuned)
    model = add_isobn(AutoModelForSequenceClassification.from_pretrained(tuned))
    model.train()(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    isobn = save_pair(model, tokenizer, tmp_path / "isobn")
    expected = outputs(isobn, TEXTS)
    folder = finetune_text_classifier(isobn, *SOME, tmp_path / "out", **QUICK)
    torch.testing.assert_close(outputs(folder, TEXTS), expected)
    assert not hasattr(AutoConfig.from_pretrained(folder), "isoadapt_isobn")
    with pytest.raises(ValueError, match="saved without IsoBN"):
        add_isobn(folder)


def test_a_transformer_inside_a_folder_of_sentence_transformers(base, tuned, tmp_path):
    shutil.copytree(base, tmp_path / "model" / "0_Transformer")
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    nested = finetune_text_classifier(tmp_path / "model", *SOME, tmp_path / "nested", **QUICK)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (nested / name).read_bytes() == (tuned / name).read_bytes()


def test_texts_and_labels_may_be_in_any_container(base, tmp_path, runs):
    halves = torch.arange(16) / 2
    kinds = [
        (tuple(SOME[0]), halves.numpy()),
        (Subset(Items([*SOME[0], "cat"]), range(16)), halves.clone().requires_grad_()),
        (Stream(SOME[0]), list(halves.bfloat16())),
        (pd.Series(SOME[0]), Items(halves.tolist())),
    ]
    for number, (texts, labels) in enumerate(kinds):
        finetune_text_classifier(base, texts, labels, tmp_path / str(number), **QUICK)
    assert [row["labels"] for row in runs[0].train_dataset] == halves.tolist()
    assert all(run.train_dataset == runs[0].train_dataset for run in runs)


def test_columns_of_several_labels_go_to_the_outputs_of_their_names(base, tmp_path, runs):
    known = {"id2label": {0: "sits", 1: "cat"}, "problem_type": "multi_label_classification"}
    start = save_model(tmp_path / "base", num_labels=2, **known)
    table = pd.DataFrame({"cat": SOME[1], "sits": SOME[1][::-1]})
    out = finetune_text_classifier(start, SOME[0], table, tmp_path / "out", **QUICK)
    assert AutoConfig.from_pretrained(out).id2label == {0: "sits", 1: "cat"}
    assert same(weights(out), weights(start))
    for each in (table.to_numpy(), csr_array(table), Items(torch.tensor(table.to_numpy()))):
        finetune_text_classifier(base, SOME[0], each, tmp_path / "c", overwrite=True, **QUICK)
    found = [[row["labels"] for row in run.train_dataset] for run in runs]
    assert found == [table[["sits", "cat"]].values.tolist(), *[table.values.tolist()] * 3]
    assert isinstance(found[0][0][0], float)  # which the loss of the model needs


# --- penalties and settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalty", "where", "loss", "place"),
    [
        ("istar", None, IsoScoreLoss(zeta=0.2, form="linear"), "all"),
        ("cosreg", None, CosRegLoss(), "last"),
        ("spectrum-control", None, SpectrumControlLoss(), "head_input"),
        ("topological-entropy", None, PersistentEntropyLoss(), "head_input"),
        (CosRegLoss(), None, CosRegLoss(), "head_input"),
        ("cosreg", 2, CosRegLoss(), (2,)),
    ],
)
def test_a_name_is_a_loss_at_its_place(base, tmp_path, runs, penalty, where, loss, place):
    options = {"penalty": penalty, "where": where, "lam": -2.0, "balance": "ema"}
    finetune_text_classifier(base, *SOME, tmp_path / "out", **options)
    objective = runs[0].isotropy_objective
    assert repr(objective.penalty) == repr(loss)
    assert objective.place == place
    assert objective.joint.weight == -2
    assert objective.joint.balance == "ema"


@pytest.mark.parametrize("class_weight", ["balanced", {"dog": 5.0}])
def test_weights_of_classes_are_those_of_scikit_learn(tmp_path, runs, class_weight):
    start = save_model(tmp_path / "base", num_labels=2, id2label={0: "dog", 1: "cat"})
    names = np.where(np.arange(64) % 4, "cat", "dog")
    options = QUICK | {"class_weight": class_weight}
    out = finetune_text_classifier(start, TEXTS, names, tmp_path / "out", **options)
    [run], rows = runs, slice(11)  # whose shares of the classes are not those of all
    found = run.compute_loss(run.model.eval(), run.data_collator(run.train_dataset[rows]))
    probabilities = outputs(out, TEXTS[rows]).double().softmax(1).flip(1)  # sorted by name
    weights = compute_sample_weight(class_weight, names)[rows]
    expected = log_loss(names[rows], probabilities, sample_weight=weights)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert abs(log_loss(names[rows], probabilities) - expected) > 1e-3


def test_settings_of_the_training(base, tmp_path, runs):
    finetune_text_classifier(base, TEXTS, LABELS, tmp_path / "a", device="cpu")
    given = {"epochs": 2, "lr": 1e-3, "batch_size": 4, "warmup": 0.0, "weight_decay": 0.0}
    finetune_text_classifier(base, *SOME, tmp_path / "b", shuffle=False, **given)
    names = ["num_train_epochs", "learning_rate", "per_device_train_batch_size", "warmup_steps"]
    names += ["train_sampling_strategy", "max_grad_norm", "lr_scheduler_type"]
    expected = [3, 5e-5, 32, 0.1, "group_by_length"], [2, 1e-3, 4, 0.0, "sequential"]
    for run, fields, decay in zip(runs, expected, (5e-6, 0.0), strict=True):
        assert [getattr(run.args, name) for name in names] == [*fields, 1, "linear"]
        optimiser = run.create_optimizer()
        assert type(optimiser) is torch.optim.AdamW
        decays = {group["weight_decay"] for group in optimiser.param_groups}
        assert sorted(decays) == pytest.approx(sorted({0.0, decay}))
        assert run.isotropy_objective.penalty is None


# --- runs that stop, and refusals -----------------------------------------------------------------


def test_a_folder_is_replaced_only_if_asked_and_the_model_itself_never(base, tmp_path, runs):
    copy, out = shutil.copytree(base, tmp_path / "copy"), tmp_path / "out"
    finetune_text_classifier(copy, *SOME, out, **QUICK)
    (out / "model.safetensors").write_bytes(b"old")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        finetune_text_classifier(copy, *SOME, out, **QUICK)
    with pytest.raises(FileExistsError, match="is the model that is read, which is kept"):
        finetune_text_classifier(copy, *SOME, copy, overwrite=True, **QUICK)
    finetune_text_classifier(copy, *SOME, out, overwrite=True, **QUICK)
    assert (out / "model.safetensors").read_bytes() != b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "out"]


def test_nothing_is_left_by_an_interrupt_or_without_accelerate(base, tmp_path, monkeypatch):
    def train(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(IsotropyTrainer, "train", train)
    with pytest.raises(KeyboardInterrupt):
        finetune_text_classifier(base, *SOME, tmp_path / "a" / "out", **QUICK)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ImportError, match=r"needs accelerate.*isoadapt\[finetune\]"):
        finetune_text_classifier(base, *SOME, tmp_path / "a" / "out")
    assert list(tmp_path.iterdir()) == []


DIVERGED = r"became (nan|inf); lower lr=1", FloatingPointError
ONE_STEP = {"batch_size": 16, "warmup": 0.0}  # whose loss is finite
test_what_cannot_be_trained_leaves_nothing = refusals(
    ({"labels": [0]}, "texts has 16 rows and labels 1"),
    ({"labels": np.ones(16, int)}, "labels holds one class only"),
    ({"labels": np.arange(16) - 1}, "labels holds -1"),
    ({"labels": [0.5, np.nan] * 8}, r"labels\[1\] is nan"),
    ({"labels": np.ones((16, 1), int)}, r"labels has shape \(16, 1\)"),
    ({"labels": np.arange(32).reshape(16, 2)}, "labels has shape.*MultiLabelBinarizer"),
    ({"labels": [["a"], ["a", "b"]] * 8}, "MultiLabelBinarizer"),
    ({"class_weight": "rare"}, "'class_weight'"),
    ({"class_weight": {"dog": 2.0}}, "positive numbers for classes of the labels, .* 0, 1"),
    ({"class_weight": {0: -1}}, "{0: -1} must be 'balanced', or a dict of positive numbers"),
    ({"class_weight": "balanced", "labels": np.arange(16) / 3}, "compute_loss_func"),
    ({"class_weight": "balanced", "labels": np.eye(16, dtype=int)}, "compute_loss_func"),
    ({"texts": ["a", 3]}, r"X\[1\] is a int"),
    ({"texts": [{"text": text} for text in SOME[0]]}, r"row\['text'\]"),
    ({"lam": -1.0}, "lam=-1.0"),
    ({"balance": "ema"}, "balance='ema'"),
    ({"penalty": "entropy"}, "'penalty'"),
    ({"penalty": "istar", "where": "first"}, "'where'"),
    ({"where": "last"}, "where='last'"),
    ({"epochs": 0}, "'epochs'"),
    ({"max_length": 3, "texts": [(text, text) for text in SOME[0]]}, "max_length=4 or more"),
    ({"penalty": "istar", "lr": 1e30}, *DIVERGED),
    (ONE_STEP | {"lr": 1e30}, *DIVERGED),
    (ONE_STEP | {"weight_decay": 0.0, "lr": 1e20}, *DIVERGED),  # its weights are finite too
    call=lambda options, base, tmp_path: finetune_text_classifier(
        base, output_folder=tmp_path / "a" / "out", **TRAINED | options
    ),
    errors=(ValueError, TypeError),
)


def test_weights_are_safetensors(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        finetune_text_classifier(folder, *SOME, tmp_path / "out", **QUICK)
