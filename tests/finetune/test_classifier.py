"""finetune_text_classifier: an ordinary checkpoint comes out, or nothing at all."""

import io
import random
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)

from isoadapt import load_checkpoint
from isoadapt.finetune import IsotropyTrainer, _training, add_isobn, finetune_text_classifier
from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss, SpectrumControlLoss
from isoadapt.metrics import isoscore

WORDS = ["good", "bad", "day", "night", "sun", "rain", "tea", "sea"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
QUICK = {"epochs": 1, "batch_size": 8, "random_state": 0, "device": "cpu"}
LONGER = QUICK | {"epochs": 12, "lr": 3e-3}


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
    folder = finetune_text_classifier(base, texts, labels, tmp_path / "out", **LONGER)
    assert folder == tmp_path / "out"
    assert (outputs(folder, texts).argmax(1).numpy() == labels).mean() > 0.95
    assert next(iter(weights(folder).values())).dtype == torch.float32
    before, after = (BertConfig.from_pretrained(each).to_dict() for each in (base, folder))
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"architectures", "problem_type", "isoadapt_label_names"}


def test_a_single_step_trains(base, data, tmp_path):
    texts, labels = (part[:8] for part in data)
    first, second = (
        weights(finetune_text_classifier(base, texts, labels, tmp_path / str(lr), **QUICK, lr=lr))
        for lr in (1e-12, 1e-3)
    )
    changes = [float((first[name] - second[name]).abs().max()) for name in first]
    assert max(changes) > 1e-4


def test_the_model_itself_is_not_overwritten(base, data, tmp_path):
    copy = shutil.copytree(base, tmp_path / "copy")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    (tmp_path / "link").symlink_to(copy)
    for out in (copy, tmp_path / "link", f"{copy}/../copy"):
        with pytest.raises(FileExistsError, match="is the model that is read, which is kept"):
            finetune_text_classifier(copy, *data, out, overwrite=True, **QUICK)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_it_learns_from_the_second_text_of_a_pair(base, data, tmp_path):
    texts, labels = data
    pairs = pd.DataFrame({"a": ["tea"] * len(texts), "b": texts})
    folder = finetune_text_classifier(base, pairs, pd.Series(labels), tmp_path / "out", **LONGER)
    predicted = outputs(folder, ["tea"] * len(texts), texts).argmax(1).numpy()
    assert (predicted == labels).mean() > 0.95


def test_names_of_classes_are_stored(base, data, tmp_path):
    texts, labels = data
    names = np.where(labels == 1, "acceptable", "zany").tolist()
    folder = finetune_text_classifier(base, texts, names, tmp_path / "out", **LONGER)
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    assert config.id2label == {0: "acceptable", 1: "zany"}
    assert config.label2id == {"acceptable": 0, "zany": 1}
    predicted = [config.id2label[int(i)] for i in outputs(folder, texts).argmax(1)]
    assert np.mean(np.array(predicted) == names) > 0.95


def test_floats_are_predicted_by_one_output(base, data, tmp_path):
    texts, labels = data
    folder = finetune_text_classifier(base, texts, labels - 0.5, tmp_path / "out", **LONGER)
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


def test_global_generators_stay_as_they_are_and_nothing_is_printed(base, data, tmp_path, capfd):
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
    assert capfd.readouterr() == ("", "")
    assert draw() == expected


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


def test_a_checkpoint_with_isobn_is_trained_on_without(base, data, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = add_isobn(AutoModelForSequenceClassification.from_pretrained(base))
    model.train()(**tokenizer(data[0], padding=True, return_tensors="pt"))
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "isobn")
    expected = outputs(tmp_path / "isobn", data[0])
    start, still = tmp_path / "isobn", QUICK | {"lr": 1e-12}
    folder = finetune_text_classifier(start, *data, tmp_path / "out", **still)
    torch.testing.assert_close(outputs(folder, data[0]), expected)
    assert not hasattr(BertConfig.from_pretrained(folder), "isoadapt_isobn")
    with pytest.raises(ValueError, match="saved without IsoBN"):
        add_isobn(folder)


def test_an_interrupt_in_training_leaves_nothing(base, data, tmp_path, monkeypatch):
    steps = []

    def step(self, model, inputs, *rest):
        steps.append(inputs)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return torch.zeros(())

    monkeypatch.setattr(IsotropyTrainer, "training_step", step)
    with pytest.raises(KeyboardInterrupt):
        finetune_text_classifier(base, *data, tmp_path / "out", **QUICK)
    assert len(steps) == 3
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_replaced_only_if_asked(base, data, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(base, out)
    (out / "vocab.txt").write_text("old")
    with pytest.raises(FileExistsError, match=r"not empty.*overwrite=True"):
        finetune_text_classifier(base, *data, out, **QUICK)
    finetune_text_classifier(base, *data, out, overwrite=True, **QUICK)
    assert not (out / "vocab.txt").exists()
    assert (out / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"penalty": "istar"},
        {"penalty": "topological-entropy"},
        {"penalty": "spectrum-control"},
        {"penalty": "spectrum-control", "lr": 1e4, "epochs": 2},
        {"batch_size": 64, "warmup": 0.0},  # one step, whose loss is finite
        {"batch_size": 64, "warmup": 0.0, "weight_decay": 0.0, "lr": 1e20},  # so are its weights
        {"batch_size": 64, "warmup": 0.0, "recipe": "isotropy-layer"},
        {"batch_size": 64, "warmup": 0.0, "recipe": "isotropy-layer", "labels": np.arange(64) / 64},
    ],
)
def test_a_diverging_loss_is_reported(base, data, tmp_path, options):
    options = {"texts": data[0], "labels": data[1], "lr": 1e30} | QUICK | options
    message = r"became (nan|inf); lower lr=1\S+ or increase warmup=0\."
    with pytest.raises(FloatingPointError, match=message):
        finetune_text_classifier(base, output_folder=tmp_path / "a" / "b" / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_shown_on_a_terminal_only_if_asked(base, data, tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    finetune_text_classifier(base, *data, tmp_path / "quiet", **QUICK)
    assert terminal.getvalue() == ""
    finetune_text_classifier(base, *data, tmp_path / "out", verbose=1, **QUICK)
    assert "Fine-tuning: 100%" in terminal.getvalue()
    assert "8/8" in terminal.getvalue()


def test_without_accelerate_nothing_begins(base, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    message = r'finetune_text_classifier needs accelerate.*"isoadapt\[finetune\]"'
    with pytest.raises(ImportError, match=message):
        finetune_text_classifier("no such model", *data, tmp_path / "a" / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def runs(monkeypatch):
    """Collect the trainers instead of letting them train."""
    collected = []
    monkeypatch.setattr(IsotropyTrainer, "train", lambda self: collected.append(self))
    return collected


class TestPenalty:
    @pytest.mark.parametrize(
        ("penalty", "loss", "where", "place"),
        [
            ("istar", IsoScoreLoss(zeta=0.2, form="linear"), None, "all"),
            ("cosreg", CosRegLoss(), None, "last"),
            ("spectrum-control", SpectrumControlLoss(), None, "head_input"),
            ("topological-entropy", PersistentEntropyLoss(), None, "head_input"),
            ("isotropy-layer", IsoScoreLoss(), None, "head_input"),
            (CosRegLoss(), CosRegLoss(), None, "head_input"),
            (CosRegLoss(), CosRegLoss(), "last", "last"),
            ("cosreg", CosRegLoss(), "head_input", "head_input"),
            (CosRegLoss(), CosRegLoss(), [1], (1,)),
            ("cosreg", CosRegLoss(), (1, 2), (1, 2)),
            ("cosreg", CosRegLoss(), 2, (2,)),
        ],
    )
    def test_a_name_is_a_loss_at_its_place(
        self, base, data, tmp_path, runs, penalty, loss, where, place
    ):
        finetune_text_classifier(base, *data, tmp_path / "out", penalty=penalty, where=where)
        objective = runs[0].isotropy_objective
        assert repr(list(objective.penalties)) == repr([loss])
        assert objective.places == [place]

    def test_it_trains_with_it(self, base, data, tmp_path):
        found = [
            weights(finetune_text_classifier(base, *data, tmp_path / str(i), **QUICK, **penalty))
            for i, penalty in enumerate(
                [{"penalty": "cosreg"}, {"penalty": CosRegLoss(), "where": "last"}, {}]
            )
        ]
        assert same(found[0], found[1])
        assert not same(found[0], found[2])

    @pytest.mark.parametrize("option", [{"lam": -1.0}, {"balance": "ema"}, {"where": "last"}])
    def test_without_one_there_is_nothing_to_weigh_or_place(self, base, data, tmp_path, option):
        (name, value), *_ = option.items()
        with pytest.raises(ValueError, match=f"{name}={value!r}.*pass penalty=, or leave them out"):
            finetune_text_classifier(base, *data, tmp_path / "out", **QUICK, **option)

    def test_the_sign_of_lam_is_the_direction(self, base, data, tmp_path):
        still = tmp_path / "still"  # dropout would add a variance of its own in training
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        BertModel.from_pretrained(base, **none).save_pretrained(still)
        AutoTokenizer.from_pretrained(base).save_pretrained(still)
        options = QUICK | {"epochs": 5, "lr": 1e-3, "batch_size": 32, "penalty": "isotropy-layer"}
        scores = []
        for lam in (-1.0, 0.0, 1.0):
            folder = finetune_text_classifier(still, *data, tmp_path / str(lam), lam=lam, **options)
            encoder, _ = load_checkpoint(folder, device="cpu")
            scores.append(isoscore(encoder.transform(data[0])))
        assert scores[2] > 2 * scores[1] > 4 * scores[0]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"penalty": "entropy"}, "'penalty' parameter .*'istar'"),
            ({"penalty": "istar", "where": "first"}, "'where' parameter .*'head_input'"),
            ({"penalty": "istar", "where": [1, 7]}, "hidden states 0 .*to 2, not 7"),
            ({"penalty": "istar", "lam": float("nan")}, "'lam' parameter"),
            ({"penalty": "istar", "balance": "mean"}, "'balance' parameter"),
            ({"recipe": "isotropy"}, "'recipe' parameter .*'istar'"),
        ],
    )
    def test_what_is_not_admissible(self, base, data, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            finetune_text_classifier(base, *data, tmp_path / "out", **QUICK, **options)
        assert list(tmp_path.iterdir()) == []


class TestRecipe:
    FIELDS = (
        "num_train_epochs",
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "lr_scheduler_type",
        "warmup_steps",
    )

    @pytest.mark.parametrize(
        ("recipe", "fields"),
        [
            (None, (3, 5e-5, 32, 1, "linear", 0.1)),
            ("topological-entropy", (10, 5e-5, 64, 1, "linear", 0.1)),
            ("istar", (4, 3e-5, 16, 2, "linear", 0.1)),
            ("isotropy-layer", (3, 5e-5, 32, 1, "linear", 0.1)),
            ("isotropy-calibration", (3, 2e-5, 32, 1, "constant_with_warmup", 0.0)),
        ],
    )
    def test_each_is_what_its_paper_says(self, base, data, tmp_path, runs, recipe, fields):
        finetune_text_classifier(base, *data, tmp_path / "out", recipe=recipe, device="cpu")
        arguments = runs[0].args
        assert tuple(getattr(arguments, name) for name in self.FIELDS) == fields
        assert arguments.weight_decay == pytest.approx(fields[1] / 10)
        assert arguments.max_grad_norm == 1
        assert arguments.train_sampling_strategy == "group_by_length"
        optimiser = runs[0].create_optimizer()
        is_adam = recipe == "topological-entropy"
        assert type(optimiser) is (torch.optim.Adam if is_adam else torch.optim.AdamW)
        assert {group["lr"] for group in optimiser.param_groups} == {fields[1]}
        decays = {group["weight_decay"] for group in optimiser.param_groups}
        assert decays == {0.0, arguments.weight_decay}
        assert not runs[0].isotropy_objective.penalties

    def test_what_is_given_goes_before_it(self, base, data, tmp_path, runs):
        given = {"epochs": 2, "lr": 1e-3, "batch_size": 4, "warmup": 0.5, "weight_decay": 0.0}
        finetune_text_classifier(
            base, *data, tmp_path / "out", recipe="isotropy-calibration", **given
        )
        fields = tuple(getattr(runs[0].args, name) for name in self.FIELDS)
        assert fields == (2, 1e-3, 4, 1, "constant_with_warmup", 0.5)
        assert runs[0].args.weight_decay == 0

    def test_isotropy_layer_holds_out_three_tenths_of_each_class(self, base, data, tmp_path, runs):
        labels = np.array([0] * 44 + [1] * 20)
        for name, targets in (("classes", labels), ("floats", labels + 0.5)):
            finetune_text_classifier(
                base, data[0], targets, tmp_path / name, recipe="isotropy-layer"
            )
        assert [len(run.train_dataset) for run in runs] == [44, 44]
        assert sum(row["labels"] for row in runs[0].eval_dataset) == 6
        assert len(runs[1].eval_dataset) == 20

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ([0.1, 0.2, 0.3], "and 3 texts are too few for that: pass 4 or more, or"),
            ([0] * 19 + [1], "and 1 of 20 texts with the label 1 are too few.*of each class"),
            (["no", "yes", "yes"], "and 1 of 3 texts with the label 'no' are too few"),
            (list("aabbccddee"), "and 2 of 10 texts with the label 'a' are too few"),
        ],
    )
    def test_isotropy_layer_with_too_few_texts(self, tmp_path, labels, message):
        texts = ["good"] * len(labels)
        with pytest.raises(ValueError, match=f"recipe='isotropy-layer' holds out 30% .*{message}"):
            finetune_text_classifier(
                "no model", texts, labels, tmp_path / "out", recipe="isotropy-layer"
            )

    def test_isotropy_layer_keeps_the_best_epoch(self, base, data, tmp_path, monkeypatch):
        scores, states = iter([0.1, 0.9, 0.5]), []
        monkeypatch.setattr(_training, "_score", lambda predictions: {"score": next(scores)})
        evaluate = IsotropyTrainer.evaluate

        def recorded(self, *args, **options):
            states.append({n: v.clone() for n, v in self.model.state_dict().items()})
            return evaluate(self, *args, **options)

        monkeypatch.setattr(IsotropyTrainer, "evaluate", recorded)
        options = QUICK | {"epochs": 3, "recipe": "isotropy-layer", "lr": 1e-3}
        kept = weights(finetune_text_classifier(base, *data, tmp_path / "out", **options))
        assert same(kept, states[1])
        assert not same(kept, states[2])

    @pytest.mark.parametrize("floats", [False, True])
    def test_isotropy_layer_learns(self, base, data, tmp_path, floats):
        options = QUICK | {"epochs": 15, "recipe": "isotropy-layer", "lr": 3e-3}
        labels = data[1] - 0.5 if floats else data[1]
        folder = finetune_text_classifier(base, data[0], labels, tmp_path / "out", **options)
        predicted = outputs(folder, data[0])
        guess = predicted[:, 0] > 0 if floats else predicted.argmax(1)
        assert (guess.numpy() == data[1]).mean() > 0.9


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
        (["a", "b"], [0, "a"], TypeError, r"labels\[0\] is 0 .int.*all of one kind"),
        (["a", "b"], ("a", True), TypeError, r"labels\[1\] is True .bool."),
        (["a", "b"], [0.5, np.str_("a")], TypeError, r"labels\[0\] is 0\.5 .float."),
        (["a", "b"], [0.5, 1e300], ValueError, r"labels\[1\] is 1e\+300.*float32.*scale"),
        (["a", "b"], [[0], [1, 2]], ValueError, "one label per text"),
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


def test_texts_longer_than_the_model_are_cut(base, data, tmp_path):
    texts = ["good " * 100, *data[0][1:]]
    folder = finetune_text_classifier(base, texts, data[1], tmp_path / "out", **QUICK)
    assert (folder / "model.safetensors").is_file()


def test_a_model_that_cannot_be_loaded(base, data, tmp_path):
    pickled = tmp_path / "pickled"
    AutoTokenizer.from_pretrained(base).save_pretrained(pickled)
    model = BertModel.from_pretrained(base)
    model.config.save_pretrained(pickled)
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"pickled.*safetensors"):
        finetune_text_classifier(pickled, *data, tmp_path / "out", **QUICK)


@pytest.mark.parametrize(("pairs", "special"), [(False, 2), (True, 3)])
def test_special_tokens_alone_are_no_text(base, data, tmp_path, pairs, special):
    texts, labels = data
    texts = list(zip(texts, texts, strict=True)) if pairs else texts
    for max_length in range(1, special + 1):
        with pytest.raises(ValueError, match=rf"max_length={max_length}\b.* {special} special"):
            finetune_text_classifier(
                base, texts, labels, tmp_path / "new" / "out", max_length=max_length, **QUICK
            )
        assert not (tmp_path / "new").exists()
    finetune_text_classifier(base, texts, labels, tmp_path / "out", max_length=special + 1, **QUICK)
