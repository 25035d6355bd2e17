"""IsotropyTrainer: the penalties' gradients, the Trainer's promises, and what is logged."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, DataCollatorForLanguageModeling

from isoadapt import TransformerEncoder
from isoadapt.finetune._objective import Watch, check_where
from isoadapt.geometry import Moments
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.losses import (
    CosRegLoss,
    IsoScoreLoss,
    JointLoss,
    PersistentEntropyLoss,
    SpectrumControlLoss,
)
from isoadapt.metrics import anisotropy
from tests.finetune.runs import (
    gradient,
    make_rows,
    make_trainer,
    penalties_to_distribute,
    plain_model,
    step_gradient,
    trained_weights,
)
from tests.tiny_models import TEXTS, make_model, make_tokenizer

PENALTIES = {
    "istar": lambda: IsoScoreLoss(0.3, "linear"),
    "isoscore": lambda: IsoScoreLoss(),
    "corrected": lambda: IsoScoreLoss(bias_corrected=True),
    "cosreg": lambda: CosRegLoss(),
    "spectrum": lambda: SpectrumControlLoss(),
    "entropy": lambda: PersistentEntropyLoss(),
    "all bars": lambda: PersistentEntropyLoss("all"),
}
PLACES = ["head_input", "last", "all", [1]]


def batch_of(rows):
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def points_of(model, place, rows):
    with Watch(model, [place]) as watch:
        inputs = batch_of(rows)
        return watch.points(place, model(**inputs, **watch.options), inputs)


def steps(trainer):
    return [entry for entry in trainer.state.log_history if "task_loss" in entry]


# The penalty's gradient


@pytest.mark.parametrize("where", PLACES, ids=str)
@pytest.mark.parametrize("name", PENALTIES)
def test_the_gradient_through_two_layers_equals_finite_differences(name, where, tmp_path):
    model = plain_model().double()
    rows = make_rows(24)
    trainer = make_trainer(model, rows, tmp_path, PENALTIES[name](), where=where, lam=3.0)
    trainer._update_prior_covs()
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


def test_lam_zero_is_plain_training(tmp_path):
    rows = make_rows(8)
    plain = step_gradient(make_trainer(plain_model(), rows, tmp_path), rows)
    weighed = step_gradient(make_trainer(plain_model(), rows, tmp_path, CosRegLoss(), lam=0), rows)
    torch.testing.assert_close(weighed, plain)


def test_several_penalties_add_up(tmp_path):
    rows = make_rows(16)
    penalties, places = [CosRegLoss(), IsoScoreLoss()], ["last", "head_input"]
    both = step_gradient(
        make_trainer(plain_model(), rows, tmp_path, penalties, lam=[2.0, -0.5], where=places), rows
    )
    plain = step_gradient(make_trainer(plain_model(), rows, tmp_path), rows)
    for penalty, lam, where in zip(penalties, [2.0, -0.5], places, strict=True):
        alone = make_trainer(plain_model(), rows, tmp_path, penalty, lam=lam, where=where)
        both = both - (step_gradient(alone, rows) - plain)
    torch.testing.assert_close(both, plain, atol=1e-6, rtol=1e-4)


def test_balanced_losses_are_those_of_the_joint_loss(tmp_path):
    rows = make_rows(24)
    trainer = make_trainer(
        plain_model(), rows, tmp_path, CosRegLoss(), lam=2.0, balance="ema", where="last"
    )
    trainer.train()
    joint = JointLoss(2.0, "ema")
    for entry in steps(trainer):
        expected = joint(torch.tensor(entry["task_loss"]), torch.tensor(entry["penalty"]))
        assert entry["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert len(steps(trainer)) == 3


def test_the_users_loss_stays_as_it_was(tmp_path):
    penalty = SpectrumControlLoss()
    trainer = make_trainer(plain_model(), make_rows(8), tmp_path, penalty)
    trainer.train()
    assert penalty.c1.isnan()
    assert trainer.isotropy_objective.penalties[0].c1.isfinite()


# Which points


def test_padding_never_counts(tmp_path):
    narrow, wide = make_rows(8), make_rows(8)
    for row in wide:
        row["input_ids"] = row["input_ids"] + [1] * 5
        row["attention_mask"] = row["attention_mask"] + [0] * 5
    model = plain_model().double().train()
    for place in PLACES:
        place = check_where(place, model)
        one, other = (points_of(model, place, rows) for rows in (narrow, wide))
        torch.testing.assert_close(one.values, other.values)
        assert torch.equal(one.rows, other.rows)


def test_all_is_the_union_of_the_layers_without_what_enters_the_first():
    model, rows = plain_model(), make_rows(8)
    states = model(**batch_of(rows), output_hidden_states=True).hidden_states
    kept = batch_of(rows)["attention_mask"].bool()
    expected = torch.cat([layer[kept] for layer in states[1:]])
    torch.testing.assert_close(points_of(model, "all", rows).values, expected)
    torch.testing.assert_close(points_of(model, "last", rows).values, states[-1][kept])
    for layers, number in (([0], 0), ([-1], 2), ([1, 1], 1)):
        place = check_where(layers, model)
        torch.testing.assert_close(points_of(model, place, rows).values, states[number][kept])


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "modernbert", "xlnet", "gpt2"])
def test_the_head_input_is_what_an_encoder_embeds(architecture):
    model = plain_model(architecture).eval()
    tokenizer = make_tokenizer(architecture)
    texts = [text for text in TEXTS if text]
    expected = TransformerEncoder((model, tokenizer), pooling="head_input").transform(texts)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = "[PAD]"
        model.config.pad_token_id = 1
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with Watch(model, ["head_input"]) as watch:
        points = watch.points("head_input", model(**inputs), inputs)
    torch.testing.assert_close(points.values, torch.tensor(expected), atol=1e-5, rtol=1e-4)
    assert points.rows.tolist() == list(range(len(texts)))


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_without_a_mask_padding_is_told_by_its_number(architecture, place):
    model = plain_model(architecture, pad_token_id=1)
    rows = make_rows(8)
    place = check_where(place, model)
    bare = batch_of(rows)
    masked = bare.copy()
    del bare["attention_mask"]
    with Watch(model, [place]) as watch:
        outputs = model(**bare, **watch.options)
        found = watch.points(place, outputs, bare)
        expected = watch.points(place, outputs, masked)
    torch.testing.assert_close(found.values, expected.values)
    if place == "head_input":
        head = model.classifier if architecture == "bert" else model.score
        torch.testing.assert_close(head(found.values), outputs.logits)


def test_watching_leaves_no_hook():
    model = plain_model()
    points_of(model, "head_input", make_rows(4))
    assert not model.classifier._forward_pre_hooks


def test_persistent_entropy_is_taken_class_by_class(tmp_path):
    rows = make_rows(24)
    whole = {"per_device_train_batch_size": 24}
    trainer = make_trainer(plain_model(), rows, tmp_path, PersistentEntropyLoss("all"), whole)
    points = points_of(trainer.model.train(), "head_input", rows).values.detach()
    expected = PersistentEntropyLoss("all")(points, batch_of(rows)["labels"])
    one_cloud = PersistentEntropyLoss("all")(points)
    trainer.train()
    assert steps(trainer)[0]["penalty"] == pytest.approx(float(expected), rel=1e-5)
    assert abs(float(one_cloud) - float(expected)) > 0.1


def test_numbers_to_be_predicted_are_no_classes(tmp_path):
    rows = [{**row, "labels": float(row["labels"])} for row in make_rows(8)]
    model = plain_model(num_labels=1)
    trainer = make_trainer(model, rows, tmp_path, PersistentEntropyLoss("all"))
    points = points_of(model.train(), "head_input", rows).values.detach()
    trainer.train()
    expected = PersistentEntropyLoss("all")(points)
    assert steps(trainer)[0]["penalty"] == pytest.approx(float(expected), rel=1e-5)


# The shrinkage covariance


def assert_prior_is_of(trainer, rows):
    """The shrinkage covariance of a trainer is that of all points of these rows."""
    model = trainer.model.eval()
    with torch.no_grad():
        cloud = points_of(model, "all", rows).values
    model.train()
    trainer._update_prior_covs()
    found = trainer.isotropy_objective.prior_covs[0]
    expected = Moments().update(cloud).covariance().float()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_shrinkage_covariance_is_that_of_the_training_rows_in_evaluation_mode(tmp_path):
    rows = make_rows(20)
    model = make_model("bert")  # with dropout
    assert_prior_is_of(make_trainer(model, rows, tmp_path, IsoScoreLoss(0.2), where="all"), rows)
    assert model.training


def test_it_is_renewed_at_the_start_of_each_epoch(tmp_path):
    rows, model = make_rows(16), make_model("bert")
    arguments = {"num_train_epochs": 3, "learning_rate": 1e-2}
    trainer = make_trainer(model, rows, tmp_path, IsoScoreLoss(0.2), arguments, where="all")
    found = []
    joined = trainer._join

    def join(*args):
        found.append(trainer.isotropy_objective.prior_covs[0])
        return joined(*args)

    trainer._join = join
    trainer.train()
    assert len(found) == 6
    assert found[0] is found[1]
    assert found[2] is found[3]
    assert not torch.allclose(found[1], found[2], rtol=1e-2)
    assert not torch.allclose(found[3], found[4], rtol=1e-2)
    n_tokens = 2 * sum(sum(row["attention_mask"]) for row in rows)
    logged = [entry for entry in trainer.state.log_history if "shrinkage_points" in entry]
    assert [entry["shrinkage_points"] for entry in logged] == [n_tokens] * 3


def test_no_more_tokens_are_read_than_allowed(tmp_path):
    options = {"where": "last", "shrinkage_tokens": 37}
    trainer = make_trainer(plain_model(), make_rows(40), tmp_path, IsoScoreLoss(0.2), **options)
    trainer._update_prior_covs()
    assert trainer.state.log_history[-1]["shrinkage_points"] == 37


@pytest.mark.filterwarnings("ignore:PersistentEntropyLoss.* was 0 in every batch")
@pytest.mark.parametrize("penalty", [IsoScoreLoss(0.0), CosRegLoss(), PersistentEntropyLoss()])
def test_it_is_not_computed_where_nothing_looks_at_it(penalty, tmp_path):
    trainer = make_trainer(plain_model(), make_rows(8), tmp_path, penalty)
    trainer.train()
    assert not any("shrinkage_points" in entry for entry in trainer.state.log_history)


def test_a_stream_of_rows_serves(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(make_rows(16))

    trainer = make_trainer(
        plain_model(), Stream(), tmp_path, IsoScoreLoss(0.2), {"max_steps": 5}, where="all"
    )
    assert_prior_is_of(trainer, make_rows(16))
    trainer.state.log_history.clear()
    trainer.train()
    assert len(steps(trainer)) == 5
    renewed = [entry["step"] for entry in trainer.state.log_history if "shrinkage_points" in entry]
    assert renewed == [0, 2, 4]


# What the Trainer promises


def test_evaluation_sees_the_tasks_loss_alone(tmp_path):
    rows = make_rows(16)
    plain = make_trainer(plain_model(), rows, tmp_path, eval_dataset=rows)
    penalised = make_trainer(
        plain_model(), rows, tmp_path, CosRegLoss(), eval_dataset=rows, lam=100.0
    )
    assert plain.evaluate()["eval_loss"] == penalised.evaluate()["eval_loss"]


@pytest.mark.parametrize("balance", [None, "cumulative"])
def test_accumulated_gradients_are_means_over_the_parts(balance, tmp_path):
    rows, options = make_rows(16), {"where": "all", "lam": 2.0, "balance": balance}
    arguments = {"gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential"}
    penalty = IsoScoreLoss(0.3, "linear")
    trainer = make_trainer(plain_model(), rows, tmp_path, penalty, arguments, **options)
    found = []
    trainer.create_optimizer_and_scheduler(1)
    update = trainer.optimizer.step

    def step(*args, **kwargs):
        found.append(gradient(trainer.model))
        return update(*args, **kwargs)

    trainer.optimizer.step = step
    trainer.args.max_grad_norm = 0.0
    trainer.train()
    reference = make_trainer(plain_model(), rows, tmp_path, penalty, **options)
    reference._update_prior_covs()
    parts = [step_gradient(reference, rows[:8]), step_gradient(reference, rows[8:])]
    torch.testing.assert_close(found[0], sum(parts) / 2, atol=1e-6, rtol=1e-4)


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Weights and logs after training in two processes, four texts each."""
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "-m", "tests.finetune.runs"]
    subprocess.run(
        [*command, str(folder), str(folder / "weights.pt")],
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        timeout=300,
    )
    return torch.load(folder / "weights.pt")


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The same in this process, with the whole batch of sixteen."""
    folder = tmp_path_factory.mktemp("single")
    return trained_weights(penalties_to_distribute(), folder, batch_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("name", penalties_to_distribute())
def test_two_processes_give_what_one_gives(name, distributed, single):
    for key, expected in single[name].items():
        torch.testing.assert_close(distributed[name][key], expected, atol=1e-5, rtol=1e-5)


RESUMED = {
    "istar": (lambda: IsoScoreLoss(0.3, "linear"), {"where": "all", "lam": -1.0}),
    "balanced": (lambda: IsoScoreLoss(), {"balance": "ema"}),
    "spectrum": (lambda: SpectrumControlLoss(), {"where": "last", "lam": 0.1}),
}

FIRST_RESUMED = [("istar", 3), ("istar", 6), ("balanced", 4), ("spectrum", 3), ("spectrum", 6)]


@pytest.mark.parametrize(  # in the first epoch, between epochs, and in the second epoch
    ("name", "stopped_at"),
    [
        pytest.param(name, step, marks=() if (name, step) in FIRST_RESUMED else pytest.mark.slow)
        for name in RESUMED
        for step in (3, 4, 6)
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(name, stopped_at, tmp_path):
    make_penalty, options = RESUMED[name]
    arguments = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": stopped_at}
    arguments |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    rows, folder = make_rows(32), tmp_path / "run"

    def run(**how):
        model = make_model("bert")
        trainer = make_trainer(model, rows, folder, make_penalty(), arguments, **options)
        trainer.train(**how)
        return trainer

    whole = run()
    resumed = run(resume_from_checkpoint=f"{folder}/checkpoint-{stopped_at}")
    weights = resumed.model.state_dict()
    assert weights.keys() == whole.model.state_dict().keys()
    for key, expected in whole.model.state_dict().items():
        torch.testing.assert_close(weights[key], expected, atol=1e-6, rtol=1e-6, msg=key)
    assert len(steps(whole)) == len(steps(resumed)) == 8
    for before, after in zip(steps(whole), steps(resumed), strict=True):
        assert after == pytest.approx(before, rel=1e-5, abs=1e-6)
    renewed = [entry["step"] for entry in resumed.state.log_history if "shrinkage_points" in entry]
    assert renewed == ([0, 4] if name == "istar" else [])


@pytest.fixture
def resume(tmp_path):
    """Train with a penalty, and go on from the first step with another one."""

    def resume(penalty, without=(), **options):
        arguments = {"save_strategy": "steps", "save_steps": 1}
        make_trainer(plain_model(), make_rows(16), tmp_path, CosRegLoss(), arguments).train()
        for name in without:
            (tmp_path / "checkpoint-1" / name).unlink()
        trainer = make_trainer(
            plain_model(), make_rows(16), tmp_path, penalty, arguments, **options
        )
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        return trainer

    return resume


def test_a_resumed_run_takes_the_weight_of_now(resume):
    entry = steps(resume(CosRegLoss(), lam=5.0))[-1]
    assert entry["loss"] == pytest.approx(entry["task_loss"] + 5 * entry["penalty"], rel=1e-4)


@pytest.mark.parametrize("name", ["istar", "balanced", "spectrum"])
def test_training_again_begins_anew(name, tmp_path):
    make_penalty, options = RESUMED[name]
    trainer = make_trainer(None, make_rows(16), tmp_path, make_penalty(), **options)
    trainer.train()
    first = steps(trainer)
    trainer.objective = None  # as a search over hyperparameters leaves it
    trainer.train()
    assert [pytest.approx(entry) for entry in first] == steps(trainer)


def test_a_checkpoint_of_another_trainer_is_taken_with_a_warning(resume):
    with pytest.warns(UserWarning, match="restart from their initial values"):
        resume(IsoScoreLoss(), without=["isoadapt_penalty.safetensors"])


def test_a_checkpoint_with_other_penalties_is_refused(resume):
    with pytest.raises(ValueError, match="belongs to other penalties"):
        resume(SpectrumControlLoss())


def test_gradient_checkpointing_changes_nothing(tmp_path):
    found = []
    for checkpointing in (False, True):
        model = plain_model()
        if checkpointing:
            model.activation_checkpointing_enable()
        penalty = IsoScoreLoss(0.3, "linear")
        trainer = make_trainer(model, make_rows(16), tmp_path, penalty, where="all")
        trainer.train()
        assert model.is_activation_checkpointing == checkpointing
        found.append(torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach())
    torch.testing.assert_close(*found)


def equal_rows(n):
    return [make_rows(1)[0] for _ in range(n)]


def one_row_a_class(n):
    return [{**row, "labels": i % 3} for i, row in enumerate(make_rows(3))][:n]


@pytest.mark.filterwarnings("ignore:.*was 0 in every batch")
@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("rows", [equal_rows(8), one_row_a_class(3)], ids=len)
@pytest.mark.parametrize("name", PENALTIES)
def test_bfloat16_steps_on_adversarial_batches_stay_finite(name, rows, batch_size, tmp_path):
    arguments = {"bf16": True, "max_steps": 2, "per_device_train_batch_size": batch_size}
    arguments["logging_nan_inf_filter"] = False
    trainer = make_trainer(plain_model(), rows, tmp_path, PENALTIES[name](), arguments, where="all")
    trainer.train()
    told = ("loss", "task_loss", "penalty")
    assert all(math.isfinite(entry[name]) for entry in steps(trainer) for name in told)
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_penalties_are_computed_in_single_precision(tmp_path):
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, Z):
            seen.append((Z.dtype, CosRegLoss()(Z).dtype))
            return Z.float().square().mean()

    make_trainer(plain_model(), make_rows(8), tmp_path, Spy(), {"bf16": True}).train()
    assert seen[0][1] == torch.float32


# Other models


@pytest.mark.parametrize("where", ["head_input", "last", "output_embeddings"])
def test_masked_language_models(where, tmp_path):
    rows = [{"input_ids": row["input_ids"]} for row in make_rows(16)]
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    model = plain_model(kind="AutoModelForMaskedLM")
    arguments = {"learning_rate": 1e-2, "num_train_epochs": 8}
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
    options = {"where": where, "lam": 10.0, "data_collator": collator}
    trainer = make_trainer(model, rows, tmp_path, CosRegLoss(), arguments, **options)
    trainer.train()
    first, *_, last = [entry["penalty"] for entry in steps(trainer)]
    assert last < min(first, 0.9 * abs(first))


@pytest.mark.parametrize("penalty", [CosRegLoss(), SpectrumControlLoss(c1=3.0, per_row=False)])
def test_output_embeddings_of_a_sequence_to_sequence_model(penalty, tmp_path):
    sizes = {"vocab_size": 24, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    sizes |= {"num_heads": 2, "decoder_start_token_id": 1, "tie_word_embeddings": False}
    config = AutoConfig.for_model("t5", **sizes)
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config)
    rows = [{**row, "labels": row["input_ids"][:4]} for row in make_rows(32)]
    trainer = make_trainer(
        model, rows, tmp_path, penalty, {"learning_rate": 1e-2}, where="output_embeddings"
    )
    trainer.train()
    expected = penalty(model.get_output_embeddings().weight)
    assert expected < steps(trainer)[0]["penalty"]
    with pytest.raises(ValueError, match="two stacks of layers"):
        make_trainer(model, rows, tmp_path, penalty, where="all")


def test_a_causal_language_model(tmp_path):
    rows = [{"input_ids": r["input_ids"], "labels": r["input_ids"]} for r in make_rows(16)]
    model = plain_model("gpt2", "AutoModelForCausalLM")
    trainer = make_trainer(
        model, rows, tmp_path, CosRegLoss(), {"gradient_accumulation_steps": 2}, where="last"
    )
    trainer.train()
    log = steps(trainer)
    assert log[0]["task_loss"] == pytest.approx(math.log(40), rel=0.2)
    assert log[0]["loss"] == pytest.approx(log[0]["task_loss"] + log[0]["penalty"], rel=1e-4)


# The log


def test_every_step_logs_the_parts_of_the_loss_and_the_isotropy_of_its_points(tmp_path):
    rows, penalty = make_rows(24), IsoScoreLoss(0.3, "linear")
    arguments, options = {"train_sampling_strategy": "sequential"}, {"where": "all", "lam": -2.0}
    trainer = make_trainer(plain_model(), rows, tmp_path, penalty, arguments, **options)
    clouds = []
    figures = trainer.figures

    def kept(points):
        clouds.append(points)
        return figures(points)

    trainer.figures = kept
    trainer.train()
    assert [entry["step"] for entry in steps(trainer)] == [1, 2, 3]
    for entry, cloud in zip(steps(trainer), clouds, strict=True):
        score = float(isoscore_star(cloud, trainer.isotropy_objective.prior_covs[0], 0.3))
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


@pytest.mark.parametrize(
    ("points", "names"),
    [
        (torch.ones(4, 3), {"anisotropy1"}),
        (torch.tensor([[math.nan, 1.0], [1.0, 2.0]]), set()),
        (torch.ones(1, 3), set()),
    ],
)
def test_figures_that_are_not_defined_are_left_out(points, names, tmp_path):
    trainer = make_trainer(plain_model(), make_rows(4), tmp_path)
    assert set(trainer.figures(points)) == names


@pytest.mark.parametrize("penalty", [IsoScoreLoss(), PersistentEntropyLoss()])
def test_a_penalty_without_points_is_told(penalty, tmp_path):
    single = {"per_device_train_batch_size": 1, "max_steps": 1}
    trainer = make_trainer(plain_model(), make_rows(4), tmp_path, penalty, single)
    with pytest.warns(UserWarning, match="was 0 in every batch since the last log"):
        trainer.train()


def test_without_a_penalty_it_trains_plainly_and_logs_the_isotropy(tmp_path):
    trainer = make_trainer(plain_model(), make_rows(8), tmp_path)
    trainer.train()
    entry = steps(trainer)[0]
    assert entry["loss"] == pytest.approx(entry["task_loss"], rel=1e-4)
    assert 0 < entry["isoscore_star"] < 1
    assert "penalty" not in entry


# Errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"where": "middle"}, ValueError, "where='middle' must be 'head_input'"),
        ({"where": [3]}, ValueError, r"has the hidden states 0 .* to 2, not 3"),
        ({"where": []}, ValueError, r"where=\[\] must be"),
        ({"where": True}, ValueError, "where=True must be"),
        ({"where": "output_embeddings"}, ValueError, "BertForSequenceClassification has no output"),
        ({"where": ["last", "all"]}, ValueError, "names 2 places for 1 penalties"),
        ({"lam": [1.0, 2.0]}, ValueError, "has 2 weights for 1 penalties"),
        ({"lam": float("nan")}, ValueError, "lam=nan must be finite"),
        ({"lam": "1"}, ValueError, "lam='1' must be finite"),
        ({"balance": "mean"}, ValueError, "balance='mean' must be"),
        ({"smoothing": 0.0, "balance": "ema"}, ValueError, "smoothing=0.0 must lie"),
        ({"shrinkage_tokens": 1}, ValueError, "shrinkage_tokens=1 must be 2 or more"),
        ({"shrinkage_tokens": "all"}, ValueError, "shrinkage_tokens='all' must be 2 or more"),
        ({"penalty": "istar"}, TypeError, "penalty holds 'istar'.*IsoScoreLoss"),
        ({"penalty": [CosRegLoss(), 1]}, TypeError, "penalty holds 1 .int"),
        ({"penalty": None, "lam": -1.0}, ValueError, "lam=-1.0 and balance=None have no effect"),
        ({"penalty": None, "balance": "ema"}, ValueError, "balance='ema' have no effect"),
    ],
)
def test_parameters_that_cannot_be(options, error, message, tmp_path):
    options = {"penalty": CosRegLoss()} | options
    with pytest.raises(error, match=message):
        make_trainer(plain_model(), make_rows(4), tmp_path, **options)


def test_a_single_point_has_no_shrinkage_covariance(tmp_path):
    trainer = make_trainer(plain_model(), make_rows(1), tmp_path, IsoScoreLoss(0.2))
    with pytest.raises(ValueError, match=r"give 1 point\(s\) at where='head_input'.*zeta=0"):
        trainer.train()
