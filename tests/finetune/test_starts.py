"""Fine-tuning from checkpoints of another task, and from containers of other libraries."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset
from transformers import AutoConfig

from isoadapt import load_checkpoint
from isoadapt.finetune import finetune_text_classifier
from isoadapt.losses import CosRegLoss, IsoScoreLoss
from tests.finetune.runs import make_rows, make_trainer, plain_model
from tests.tiny_models import TEXTS, save_model

QUICK = {"epochs": 1, "batch_size": 32, "random_state": 0, "device": "cpu"}
LIST = [text for text in TEXTS if text] * 4
ROWS = np.arange(len(LIST))
LABELS = {
    "numbers": ROWS / 10,
    "two classes": ROWS % 2,
    "three classes": ROWS % 3,
    "named classes": np.array(["x", "y", "z"])[ROWS % 3],
}
STARTS = {
    "two classes": {"num_labels": 2, "problem_type": "single_label_classification"},
    "four classes": {"num_labels": 4, "problem_type": "single_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "two values": {"num_labels": 2, "problem_type": "regression"},
    "two labels at a time": {"num_labels": 2, "problem_type": "multi_label_classification"},
    "three labels at a time": {"num_labels": 3, "problem_type": "multi_label_classification"},
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("start", STARTS)
def test_a_checkpoint_of_any_task_may_be_the_start(start, labels, tmp_path):
    base = save_model(tmp_path / "base", **STARTS[start])
    out = finetune_text_classifier(base, LIST, LABELS[labels], tmp_path / "out", **QUICK)
    config = AutoConfig.from_pretrained(out)
    if labels == "numbers":
        assert (config.problem_type, config.num_labels) == ("regression", 1)
        assert config.id2label == {0: "LABEL_0"}
    else:
        assert config.problem_type == "single_label_classification"
        names = ["x", "y", "z"] if labels == "named classes" else None
        n_classes = 2 if labels == "two classes" else 3
        assert config.id2label == dict(enumerate(names or [f"LABEL_{i}" for i in range(n_classes)]))
    assert config.label2id == {name: i for i, name in config.id2label.items()}
    encoder, head = load_checkpoint(out)
    assert head.predict(encoder.transform(LIST[:3])).dtype.kind == LABELS[labels].dtype.kind


def test_a_transformer_inside_a_folder_of_sentence_transformers(tmp_path):
    inner = save_model(tmp_path / "model" / "0_Transformer", kind="AutoModel")
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    nested, plain = (
        finetune_text_classifier(start, LIST, ROWS % 2, tmp_path / name, **QUICK)
        for start, name in ((tmp_path / "model", "nested"), (inner, "plain"))
    )
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (nested / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.parametrize("place", ["", "0_Transformer"])
@pytest.mark.parametrize(
    ("weights", "message"), [("../x.safetensors", "not inside"), ("x.bin", "only safetensors")]
)
def test_files_that_are_refused_say_so_alone(weights, message, place, tmp_path):
    folder = save_model(tmp_path / "model" / place)
    (folder / "config.json").write_text(json.dumps({"transformers_weights": weights}))
    if place:
        modules = [{"type": "models.Transformer", "path": place}]
        (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=message) as refusal:
        finetune_text_classifier(tmp_path / "model", LIST, ROWS % 2, tmp_path / "out", **QUICK)
    assert str(folder / "config.json") in str(refusal.value)
    assert "connection" not in str(refusal.value)


# Labels and texts from torch and datasets


class Items(Dataset):
    """A dataset of torch, which says how long it is and does not end by itself."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i % len(self.items)]


class Stream(IterableDataset):
    """A stream that knows its length."""

    __init__, __len__ = Items.__init__, Items.__len__

    def __iter__(self):
        return iter(self.items)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "base")


def assert_trained_alike(base, folder, *runs):
    """All these texts and labels give the same classifier as the first ones."""
    heads = []
    for number, (texts, labels) in enumerate(runs):
        out = finetune_text_classifier(base, texts, labels, folder / str(number), **QUICK)
        heads.append(load_checkpoint(out)[1].coef_)
    for number, coef in enumerate(heads):
        np.testing.assert_array_equal(coef, heads[0], err_msg=str(number))


def test_texts_may_be_a_dataset_of_torch(base, tmp_path):
    subset = Subset(Items([*LIST, "cat"]), range(len(LIST)))
    kinds = LIST, Items(LIST), subset, Stream(LIST)
    assert_trained_alike(base, tmp_path, *((texts, ROWS % 2) for texts in kinds))


def test_labels_may_be_tensors(base, tmp_path):
    halves = torch.arange(len(LIST)) / 2
    kinds = halves.numpy(), halves.bfloat16(), halves.clone().requires_grad_()
    kinds += list(halves.bfloat16()), Items(halves.tolist())
    assert_trained_alike(base, tmp_path, *((LIST, labels) for labels in kinds))


@pytest.mark.parametrize("container", [list, Items])
def test_rows_with_columns_say_how_to_choose_one(base, container, tmp_path):
    rows = container([{"text": text, "label": 0} for text in LIST])
    with pytest.raises(TypeError, match=r"texts.*'text', 'label'.*row\['text'\]"):
        finetune_text_classifier(base, rows, ROWS % 2, tmp_path / "out", **QUICK)


def test_a_dataset_of_hugging_face_says_how_to_choose_a_column(base, tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": LIST, "label": (ROWS % 2).tolist()})
    for whole in (dataset, dataset.to_iterable_dataset()):
        with pytest.raises(TypeError, match=r"texts.*'text', 'label'.*row\['text'\]"):
            finetune_text_classifier(base, whole, ROWS % 2, tmp_path / "out", **QUICK)
    columns = dataset["text"], dataset["label"]
    assert_trained_alike(base, tmp_path, (LIST, ROWS % 2), columns)


def prior_cov(rows, folder):
    options = {"where": "all", "shrinkage_tokens": 10_000, "arguments": {"max_steps": 1}}
    trainer = make_trainer(plain_model(), rows, folder, IsoScoreLoss(0.2), **options)
    trainer.train()
    return trainer.isotropy_objective.prior_covs[0]


@pytest.mark.parametrize(
    "kind",
    [Items, Stream, lambda rows: Subset(Items(rows), range(16))],
    ids=["items", "stream", "subset"],
)
def test_the_shrinkage_covariance_is_that_of_any_dataset_of_torch(kind, tmp_path):
    rows = make_rows(16)
    found = prior_cov(kind(rows), tmp_path)
    torch.testing.assert_close(found, prior_cov(rows, tmp_path), atol=1e-5, rtol=1e-4)


def test_the_shrinkage_covariance_is_that_of_a_dataset_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = make_rows(16)
    dataset = datasets.Dataset.from_list([{**row, "text": "unused"} for row in rows])
    expected = prior_cov(rows, tmp_path)
    for each in (dataset, dataset.with_format("torch"), dataset.to_iterable_dataset()):
        found = prior_cov(each, tmp_path)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


# Penalties that are not one number with a gradient


class Returning(torch.nn.Module):
    """A penalty that returns what a function makes of the points."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, points):
        return self.make(points)


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda points: points.square().mean(0), ValueError, r"shape \(16,\)"),
        (lambda points: points.square().mean().view(1), ValueError, r"shape \(1,\)"),
        (lambda points: float(points.detach().square().mean()), TypeError, "float"),
        (lambda points: (points.square().mean(),), TypeError, "tuple"),
        (lambda points: None, TypeError, "NoneType"),
        (lambda points: (points > 0).sum(), TypeError, "int64"),
        (lambda points: points.detach().square().mean(), ValueError, "no gradient"),
    ],
    ids=["vector", "one element", "float", "tuple", "nothing", "integer", "detached"],
)
def test_a_penalty_that_is_no_number_with_a_gradient_is_named(make, error, word, tmp_path):
    trainer = make_trainer(plain_model(), make_rows(8), tmp_path, [CosRegLoss(), Returning(make)])
    with pytest.raises(error, match=rf"(?s)Returning.*{word}"):
        trainer.train()


def test_a_penalty_of_what_is_not_trained_is_warned_of(tmp_path):
    model = plain_model()
    model.base_model.requires_grad_(False)
    penalty = Returning(lambda points: points.square().mean())
    trainer = make_trainer(model, make_rows(8), tmp_path, penalty, where="last")
    with pytest.warns(UserWarning, match=r"has no effect.* the points of where='last'"):
        trainer.train()
    zero = Returning(lambda points: torch.zeros(()))
    make_trainer(plain_model(), make_rows(8), tmp_path, zero).train()
