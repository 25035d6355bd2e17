"""IsotropyTrainer: the penalties' gradients, the Trainer's promises, and what is logged."""

import copy
import math
import warnings

import pytest
import torch
from torch.utils.data import Subset
from transformers import Trainer

from isoadapt import TransformerEncoder, losses
from isoadapt.finetune import IsotropyTrainer
from isoadapt.finetune._objective import Watch, check_where
from isoadapt.geometry import Moments
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss, SpectrumControlLoss
from isoadapt.metrics import anisotropy
from tests.finetune.runs import (
    Items,
    Stream,
    gradient,
    make_rows,
    make_trainer,
    plain_model,
    quiet_arguments,
    step_gradient,
)
from tests.refusals import refusals
from tests.tiny_models import TEXTS, make_model, make_tokenizer


def batch_of(rows):
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def points_of(model, place, rows):
    with Watch(model, place) as watch:
        inputs = batch_of(rows)
        return watch.points(model(**inputs, **watch.options), inputs)


def steps(trainer):
    return [entry for entry in trainer.state.log_history if "task_loss" in entry]


# The penalty's gradient


@pytest.mark.parametrize(
    ("penalty", "where"),
    [
        (IsoScoreLoss(0.3, "linear"), "all"),
        (IsoScoreLoss(bias_corrected=True), [1]),
        (CosRegLoss(), "last"),
        (SpectrumControlLoss(), "head_input"),
        (PersistentEntropyLoss(), "head_input"),
    ],
)
def test_the_gradient_through_two_layers_equals_finite_differences(penalty, where, tmp_path):
    model = plain_model().double()
    rows = make_rows(24)
    trainer = make_trainer(model, rows, tmp_path, penalty, where=where, lam=3.0)
    trainer._update_prior_cov()
    step_gradient(trainer, rows)  # a penalty that takes its scale from the first call has it now
    slope = step_gradient(trainer, rows)
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(slope.numel(), generator=generator, dtype=torch.float64)
    direction += slope / slope.norm() * direction.norm()

    def loss_at(step):
        with torch.no_grad():
            before = torch.nn.utils.parameters_to_vector(parameters)
            torch.nn.utils.vector_to_parameters(before + step * direction, parameters)
            found = trainer.compute_loss(model, batch_of(rows)).item()
            torch.nn.utils.vector_to_parameters(before, parameters)
            return found

    step = 1e-6 / direction.norm().item() * slope.numel() ** 0.5
    difference = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert difference == pytest.approx(float(slope @ direction), rel=1e-5)


def test_balanced_losses_are_those_of_the_joint_loss(tmp_path):
    options = {"lam": 2.0, "balance": "ema", "where": "last"}
    penalty = SpectrumControlLoss()
    trainer = make_trainer(plain_model(), make_rows(24), tmp_path, penalty, **options)
    trainer.train()
    joint = losses.JointLoss(2.0, "ema")
    for entry in steps(trainer):
        expected = joint(torch.tensor(entry["task_loss"]), torch.tensor(entry["penalty"]))
        assert entry["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert len(steps(trainer)) == 3
    assert penalty.c1.isnan()  # the loss of the user stays as it was
    assert trainer.isotropy_objective.penalty.c1.isfinite()


# Which points


def test_all_is_the_union_of_the_layers_without_what_enters_the_first():
    model, rows = plain_model(), make_rows(8)
    states = model(**batch_of(rows), output_hidden_states=True).hidden_states
    kept = batch_of(rows)["attention_mask"].bool()
    expected = torch.cat([layer[kept] for layer in states[1:]])
    torch.testing.assert_close(points_of(model, "all", rows).values, expected)
    torch.testing.assert_close(points_of(model, "last", rows).values, states[-1][kept])
    assert not model.classifier._forward_pre_hooks
    for layers, number in (([0], 0), ([-1], 2), ([1, 1], 1)):
        place = check_where(layers, model)
        torch.testing.assert_close(points_of(model, place, rows).values, states[number][kept])


def test_the_head_input_is_what_an_encoder_embeds():
    model, tokenizer = plain_model().eval(), make_tokenizer()
    expected = TransformerEncoder((model, tokenizer), pooling="head_input").transform(TEXTS)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with Watch(model, "head_input") as watch:
        points = watch.points(model(**inputs), inputs)
    torch.testing.assert_close(points.values, torch.tensor(expected), atol=1e-5, rtol=1e-4)
    assert points.rows.tolist() == list(range(len(TEXTS)))


@pytest.mark.parametrize(("architecture", "place"), [("bert", "all"), ("gpt2", "head_input")])
def test_without_a_mask_padding_is_told_by_its_number(architecture, place):
    model = plain_model(architecture, pad_token_id=1)
    rows = make_rows(8)
    place = check_where(place, model)
    bare = batch_of(rows)
    masked = bare.copy()
    del bare["attention_mask"]
    with Watch(model, place) as watch:
        outputs = model(**bare, **watch.options)
        found, expected = (watch.points(outputs, inputs) for inputs in (bare, masked))
    torch.testing.assert_close(found.values, expected.values)
    if place == "head_input":
        torch.testing.assert_close(model.score(found.values), outputs.logits)


def test_points_of_language_models():
    """Each token enters the head; output embeddings are weights."""
    model, rows = plain_model(kind="AutoModelForMaskedLM"), make_rows(8)
    for row in rows:
        del row["labels"]
    points = points_of(model, "head_input", rows).values
    kept = batch_of(rows)["attention_mask"].bool()
    logits = model(**batch_of(rows)).logits[kept]
    torch.testing.assert_close(model.cls.predictions.decoder(points), logits)
    weights = points_of(model, "output_embeddings", rows).values
    assert weights is model.get_output_embeddings().weight


@pytest.mark.parametrize("are_classes", [True, False])
def test_persistent_entropy_is_taken_class_by_class(are_classes, tmp_path):
    """Unless the labels are numbers to be predicted."""
    rows, loss = make_rows(24), PersistentEntropyLoss("all")
    model = plain_model(num_labels=3 if are_classes else 1)
    if not are_classes:
        rows = [{**row, "labels": float(row["labels"])} for row in rows]
    trainer = make_trainer(model, rows, tmp_path, loss, {"per_device_train_batch_size": 24})
    points = points_of(model.train(), "head_input", rows).values.detach()
    one_cloud = float(loss(points))
    expected = float(loss(points, batch_of(rows)["labels"])) if are_classes else one_cloud
    trainer.train()
    assert steps(trainer)[0]["penalty"] == pytest.approx(expected, rel=1e-5)
    assert (abs(expected - one_cloud) > 0.1) == are_classes


# The shrinkage covariance


def test_no_more_tokens_are_read_than_allowed(tmp_path):
    options = {"where": "last", "shrinkage_tokens": 37}
    trainer = make_trainer(plain_model(), make_rows(40), tmp_path, IsoScoreLoss(0.2), **options)
    trainer._update_prior_cov()
    assert trainer.state.log_history[-1]["shrinkage_points"] == 37


def test_it_is_that_of_all_points_in_evaluation_mode_of_any_dataset(tmp_path):
    rows = make_rows(16)
    kinds = [rows, Stream(rows), Subset(Items(rows + rows), range(16))]
    dataset = pytest.importorskip("datasets").Dataset.from_list([{**r, "text": "x"} for r in rows])
    kinds += [dataset.with_format("torch"), dataset.to_iterable_dataset()]
    options = {"where": "all", "arguments": {"max_steps": 1}}
    for kind in kinds:
        model = make_model("bert")  # with dropout
        trainer = make_trainer(model, kind, tmp_path, IsoScoreLoss(0.2), **options)
        with torch.no_grad():
            cloud = points_of(model.eval(), "all", rows).values
        model.train()
        trainer._update_prior_cov()
        assert model.training
        expected = Moments().update(cloud).covariance().float()
        found = trainer.isotropy_objective.prior_cov
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_it_is_renewed_at_the_start_of_each_epoch(tmp_path):
    """Also of a stream, which does not say how long it is."""
    rows, arguments = make_rows(16), {"max_steps": 3, "learning_rate": 1e-2}
    penalty, model = IsoScoreLoss(0.2), plain_model()
    trainer = make_trainer(model, Stream(rows), tmp_path, penalty, arguments, where="last")
    trainer._update_prior_cov()
    before = trainer.isotropy_objective.prior_cov
    trainer.train()
    assert not torch.allclose(trainer.isotropy_objective.prior_cov, before, rtol=1e-2)
    n_tokens = sum(sum(row["attention_mask"]) for row in rows)
    logged = [entry for entry in trainer.state.log_history if "shrinkage_points" in entry]
    assert [each["step"] for each in logged] == [0, 2]
    assert [each["shrinkage_points"] for each in logged] == [n_tokens] * 2


# What the Trainer promises


def test_evaluation_sees_the_tasks_loss_alone(tmp_path):
    model, rows = plain_model(), make_rows(8)
    trainer = make_trainer(model, rows, tmp_path, CosRegLoss(), eval_dataset=rows, lam=100.0)
    expected = model(**batch_of(rows)).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_accumulated_gradients_are_means_over_the_parts(tmp_path, spy):
    rows, options = make_rows(16), {"where": "all", "lam": 2.0, "balance": "cumulative"}
    arguments = {"gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential"}
    penalty = IsoScoreLoss(0.3, "linear")
    trainer = make_trainer(plain_model(), rows, tmp_path, penalty, arguments, **options)
    trainer.create_optimizer_and_scheduler(1)
    found = spy(trainer.optimizer, "step", lambda *_: gradient(trainer.model))
    trainer.args.max_grad_norm = 0.0
    trainer.train()
    reference = make_trainer(plain_model(), rows, tmp_path, penalty, **options)
    reference._update_prior_cov()
    parts = [step_gradient(reference, rows[:8]), step_gradient(reference, rows[8:])]
    torch.testing.assert_close(found[0], sum(parts) / 2, atol=1e-6, rtol=1e-4)


GPT2 = ("gpt2", "AutoModelForCausalLM")  # whose loss counts the labels of the step


def language_rows(n):
    """Texts of very different lengths, whose padding has no label."""
    rows = make_rows(n)
    for row in rows:
        mask = row["attention_mask"]
        row["labels"] = [i if m else -100 for i, m in zip(row["input_ids"], mask, strict=True)]
    rows[0]["labels"][2:] = [-100] * 10
    return rows


def train_in_parts(trainer_class, model, rows, folder, **options):
    """Logged losses and trained weights: steps of three parts each, and one of the remainder."""
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    settings |= {"learning_rate": 0.05, "optim": "sgd", "max_grad_norm": 0.0}
    settings |= {"lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    args = quiet_arguments(folder, **settings)
    trainer = trainer_class(model=model, args=args, train_dataset=rows, **options)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor(losses), torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def assert_same_training(ours, theirs):
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("language_model", [GPT2, ("bert", "AutoModelForMaskedLM")])
def test_the_loss_is_that_of_the_plain_trainer(language_model, tmp_path):
    """A loss that is not divided by the labels of the step: of one that knows it for a mean."""
    models = [plain_model(*language_model) for _ in range(2)]
    if language_model != GPT2:
        models[0].accepts_loss_kwargs = False
    theirs = train_in_parts(Trainer, models[0], language_rows(10), tmp_path)
    options = {"penalty": CosRegLoss(), "lam": 0.0, "where": "last"}
    ours = train_in_parts(IsotropyTrainer, models[1], language_rows(10), tmp_path, **options)
    assert_same_training(ours, theirs)


RESUMED = {  # in the first epoch and the second one, or between them
    "istar": (lambda: IsoScoreLoss(0.3, "linear"), {"where": "all", "lam": -1.0}, [2, 4]),
    "balanced": (SpectrumControlLoss, {"balance": "ema"}, [3]),
    "anchor": (lambda: "anchor", {"lam": 2.0}, [2, 4]),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    make_penalty, options, stops = RESUMED[name]
    arguments = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": stops[0]}
    arguments |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    rows, folder = make_rows(24), tmp_path / "run"

    def run(model, **how):
        trainer = make_trainer(model, rows, folder, make_penalty(), arguments, **options)
        trainer.train(**how)
        return trainer

    whole = run(make_model("bert"))
    for stop in stops:  # whatever the model is that is passed
        checkpoint = f"{folder}/checkpoint-{stop}"
        resumed = run(copy.deepcopy(whole.model), resume_from_checkpoint=checkpoint)
        weights = (each.model.state_dict() for each in (resumed, whole))
        torch.testing.assert_close(*weights, atol=1e-6, rtol=1e-6)
        assert len(steps(whole)) == len(steps(resumed)) == 6
        for before, after in zip(steps(whole), steps(resumed), strict=True):
            assert after == pytest.approx(before, rel=1e-5, abs=1e-6)
        logged = [each for each in resumed.state.log_history if "shrinkage_points" in each]
        assert [entry["step"] for entry in logged] == ([0, 3] if name == "istar" else [])


def test_a_resumed_run_takes_the_weight_of_now_and_no_other_penalty(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 1}
    checkpoint = tmp_path / "checkpoint-1"

    def run(penalty, checkpoint=None, **options):
        given = plain_model(), make_rows(16), tmp_path, penalty, arguments
        trainer = make_trainer(*given, **options)
        trainer.train(resume_from_checkpoint=checkpoint)
        return steps(trainer)[-1]

    run(CosRegLoss())
    entry = run(CosRegLoss(), str(checkpoint), lam=5.0)
    assert entry["loss"] == pytest.approx(entry["task_loss"] + 5 * entry["penalty"], rel=1e-4)
    with pytest.raises(ValueError, match="belongs to another penalty"):
        run(SpectrumControlLoss(), str(checkpoint))
    (checkpoint / "isoadapt_penalty.safetensors").unlink()
    with pytest.warns(UserWarning, match="restart from their initial values"):
        run(IsoScoreLoss(), str(checkpoint))


@pytest.mark.parametrize("penalty", [SpectrumControlLoss(), "anchor"])
def test_training_again_begins_anew(penalty, tmp_path):
    trainer = make_trainer(None, make_rows(16), tmp_path, penalty, balance="ema")
    trainer.train()
    first = steps(trainer)
    trainer.objective = None  # as a search over hyperparameters leaves it
    trainer.train()
    assert [pytest.approx(entry) for entry in first] == steps(trainer)


# The log


def test_every_step_logs_the_parts_of_the_loss_and_the_isotropy_of_its_points(tmp_path, spy):
    rows, penalty = make_rows(24), IsoScoreLoss(0.3, "linear")
    arguments, options = {"train_sampling_strategy": "sequential"}, {"where": "all", "lam": -2.0}
    trainer = make_trainer(plain_model(), rows, tmp_path, penalty, arguments, **options)
    clouds = spy(trainer, "figures", lambda points: points)
    trainer.train()
    assert [entry["step"] for entry in steps(trainer)] == [1, 2, 3]
    for entry, cloud in zip(steps(trainer), clouds, strict=True):
        score = float(isoscore_star(cloud, trainer.isotropy_objective.prior_cov, 0.3))
        assert entry["isoscore_star"] == pytest.approx(score, rel=1e-5)
        assert entry["penalty"] == pytest.approx(1 - score, rel=1e-4)
        assert entry["loss"] == pytest.approx(entry["task_loss"] - 2 * entry["penalty"], rel=1e-4)
        raw, centred = anisotropy(cloud, k=1), anisotropy(cloud, k=1, center=True)
        assert entry["anisotropy1"] == pytest.approx(raw, rel=1e-4)
        assert entry["anisotropy1_centered"] == pytest.approx(centred, rel=1e-4)
        assert entry["ev1"] == pytest.approx(centred, rel=1e-4)
    first = points_of(plain_model().train(), "all", rows[:8]).values
    torch.testing.assert_close(clouds[0], first.detach(), atol=1e-5, rtol=1e-4)


def test_the_losses_are_means_since_the_last_log(tmp_path):
    def run(every):
        rows, often = make_rows(32), {"logging_steps": every}
        trainer = make_trainer(make_model("bert"), rows, tmp_path, CosRegLoss(), often)
        trainer.train()
        return trainer

    every, second = run(1), run(2)
    for key in ("task_loss", "penalty"):
        singly = [entry[key] for entry in steps(every)]
        expected = [sum(singly[:2]) / 2, sum(singly[2:]) / 2]
        assert [entry[key] for entry in steps(second)] == pytest.approx(expected, rel=1e-4)


def test_without_a_penalty_it_trains_plainly_and_logs_the_isotropy_where_it_is_defined(tmp_path):
    trainer = make_trainer(plain_model(), make_rows(8), tmp_path)
    trainer.train()
    entry = steps(trainer)[0]
    assert entry["loss"] == pytest.approx(entry["task_loss"], rel=1e-4)
    assert 0 < entry["isoscore_star"] < 1
    assert "penalty" not in entry
    assert set(trainer.figures(torch.ones(4, 3))) == {"anisotropy1"}
    for points in (torch.tensor([[math.nan, 1.0], [1.0, 2.0]]), torch.ones(1, 3)):
        assert trainer.figures(points) == {}


def test_a_penalty_without_points_is_told(tmp_path):
    single = {"per_device_train_batch_size": 1, "max_steps": 1}
    trainer = make_trainer(plain_model(), make_rows(4), tmp_path, IsoScoreLoss(), single)
    with pytest.warns(UserWarning, match="was 0 in every batch since the last log"):
        trainer.train()


# Refusals


test_wrong_parameters = refusals(
    ({"where": "middle"}, "where='middle'"),
    ({"where": [3]}, "to 2, not 3"),
    ({"where": "output_embeddings"}, "no output embeddings"),
    ({"where": ["last", "all"]}, r"where=\['last', 'all'\] must be"),
    ({"lam": [1.0, 2.0]}, r"lam=\[1.0, 2.0\] must be a finite number"),
    ({"balance": "mean"}, "balance"),
    ({"penalty": "entropy"}, "'entropy' must be one of .*anchor"),
    ({"penalty": "anchor", "where": "last"}, "where='last': .* compares the mean-pooled"),
    ({"penalty": None, "lam": -1.0}, "lam=-1.0"),
    call=lambda options, tmp_path: make_trainer(
        plain_model(), make_rows(4), tmp_path, **{"penalty": CosRegLoss()} | options
    ),
    errors=(ValueError, TypeError),
)


class Detached(torch.nn.Module):
    def forward(self, points):
        return points.detach().square().mean()


def test_a_penalty_without_a_gradient_is_named(tmp_path):
    rows = make_rows(8)
    with pytest.raises(ValueError, match=r"penalty Detached.*no gradient"):
        step_gradient(make_trainer(plain_model(), rows, tmp_path, Detached()), rows)


# LoRA, and subclasses


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # of peft
@pytest.mark.parametrize(
    ("targets", "task"), [(["query"], "SEQ_CLS"), (["query", "classifier"], None)]
)
def test_the_head_input_of_a_model_with_lora(targets, task, tmp_path):
    """What enters the head, a copy of peft's or a layer that LoRA adapts, with its gradient."""
    peft = pytest.importorskip("peft")
    # As many labels as the rank, so that a layer of LoRA has the shape of a head.
    config = peft.LoraConfig(task, r=3, target_modules=targets, init_lora_weights=False)
    model, rows = peft.get_peft_model(plain_model(), config), make_rows(12)
    trainers = [make_trainer(model, rows, tmp_path, CosRegLoss(), lam=lam) for lam in (0.0, 5.0)]
    inputs = batch_of(rows)
    with trainers[0]._watch() as watch:
        outputs = model(**inputs)
    entered = watch.points(outputs, inputs).values
    merged = copy.deepcopy(model).merge_and_unload()
    torch.testing.assert_close(merged.classifier(entered), outputs.logits)
    without, with_penalty = (step_gradient(trainer, rows) for trainer in trainers)
    assert (without - with_penalty).abs().max() > 0.1


class OfOneClass(IsotropyTrainer):
    calls_super = False

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = model(**inputs).logits[:, 0].square().mean()
        return loss + super().compute_loss(model, inputs) if self.calls_super else loss


class OfBoth(OfOneClass):
    calls_super = True


def test_a_loss_that_drops_the_penalty_gives_a_warning(tmp_path):
    given = plain_model(), make_rows(24), quiet_arguments(tmp_path)
    makers = [(kind, penalty) for kind in (OfOneClass, OfBoth) for penalty in (CosRegLoss(), None)]
    for kind, penalty in makers:
        trainer = kind(given[0], given[2], train_dataset=given[1], penalty=penalty)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train()
        found = [str(each.message) for each in caught if "compute_loss_func=" in str(each.message)]
        assert len(found) == (kind is OfOneClass and penalty is not None)
