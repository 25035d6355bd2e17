"""The anchor: vectors of texts stay near those of the model before the training."""

import copy

import pytest
import torch

from isoadapt import TransformerEncoder
from isoadapt.finetune import finetune_text_classifier
from isoadapt.finetune._objective import Watch
from tests.finetune.runs import Stream, make_rows, make_trainer, plain_model
from tests.tiny_models import TEXTS, make_model, make_tokenizer, save_pair

ROWS = make_rows(32)
STILL = {"optim": "sgd", "learning_rate": 0.5, "train_sampling_strategy": "sequential"}
STILL |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def mean_vectors(model, rows):
    """Vectors of padded rows by pooling alone."""
    ids, mask = (torch.tensor([row[k] for row in rows]) for k in ("input_ids", "attention_mask"))
    with torch.inference_mode():
        states = copy.deepcopy(model).eval().base_model(ids, mask).last_hidden_state
    return torch.stack([row[kept.bool()].mean(0) for row, kept in zip(states, mask, strict=True)])


def mean_cosine(before, after):
    return torch.cosine_similarity(before, after).mean().item()


def penalties(trainer):
    return [entry["penalty"] for entry in trainer.state.log_history if "penalty" in entry]


def anchored(folder, lam=None, rows=ROWS, model=None, penalty="anchor", **arguments):
    model = plain_model() if model is None else model
    trainer = make_trainer(model, rows, folder, penalty, STILL | arguments, lam=lam)
    trainer.train()
    return trainer


# What it computes


def test_it_is_1_minus_the_mean_cosine_to_the_vectors_of_before(tmp_path):
    """So it is 0 in the first step; rows that are equal and batches of other lengths count too."""
    rows = [*ROWS[:16], *ROWS[:8], *ROWS[:8]]
    before = mean_vectors(plain_model(), rows[24:])
    trainer = anchored(tmp_path, rows=rows, max_steps=3)
    assert penalties(trainer)[0] == pytest.approx(0, abs=1e-6)
    after = anchored(tmp_path, rows=rows, max_steps=4)
    expected = 1 - mean_cosine(before, mean_vectors(trainer.model, rows[24:]))
    assert penalties(after)[3] == pytest.approx(expected, rel=1e-3)
    assert expected > 1e-3
    assert len(trainer.isotropy_objective.penalty.texts) == 16


def test_its_gradient_pulls_the_vectors_back(tmp_path):
    """The more so, the larger its weight."""
    before, options = mean_vectors(plain_model(), ROWS), {"learning_rate": 0.05, "max_steps": 12}
    trainers = [anchored(tmp_path, lam, **options) for lam in (0.0, 0.3, 1.0)]
    away = [1 - mean_cosine(before, mean_vectors(each.model, ROWS)) for each in trainers]
    assert away[0] > 1.5 * away[1] > 1.5 * away[2]


def test_with_the_weight_0_training_is_that_without_a_penalty(tmp_path):
    """To the bit, with dropout and shuffled rows: encoding draws no random number of others."""
    options = {"train_sampling_strategy": "group_by_length", "seed": 3}
    found = [
        anchored(tmp_path, lam, model=make_model("bert"), penalty=penalty, **options)
        for lam, penalty in ((0.0, "anchor"), (None, None))
    ]
    for one, other in zip(*(each.model.parameters() for each in found), strict=True):
        assert torch.equal(one, other)
    assert found[0].train_dataset is ROWS
    assert min(penalties(found[0])) > 1e-3  # dropout


def test_parts_of_a_step_are_a_whole_batch(tmp_path):
    """The mean over texts is the mean over the parts, for the penalty too."""
    whole = anchored(tmp_path, 3.0)
    parts = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    found = anchored(tmp_path, 3.0, **parts)
    for name, expected in whole.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], expected, atol=1e-5, rtol=1e-4)
    assert penalties(found) == pytest.approx(penalties(whole), abs=1e-5)


def test_a_stream_is_encoded_and_evaluation_is_that_of_the_task(tmp_path):
    stream = anchored(tmp_path, rows=Stream(ROWS), max_steps=4)
    trainer = anchored(tmp_path, max_steps=4)
    assert penalties(stream) == pytest.approx(penalties(trainer), abs=1e-6)
    strange = make_rows(8, seed=7)  # of which no vector from before is known
    loss = trainer.model.eval()(
        **{name: torch.tensor([row[name] for row in strange]) for name in strange[0]}
    ).loss
    assert trainer.evaluate(strange)["eval_loss"] == pytest.approx(loss.item(), rel=1e-5)


# How it finds a text


def test_a_text_is_known_by_its_tokens_wherever_the_padding_is():
    tokenizer, keys = make_tokenizer(), []
    for side in ("left", "right"):
        for length in (24, 30):
            options = {"padding": "max_length", "max_length": length, "return_tensors": "pt"}
            inputs = tokenizer(TEXTS, padding_side=side, **options)
            keys.append(Watch(plain_model(), "mean").text_keys(inputs).tolist())
    assert all(each == keys[0] for each in keys)
    assert [keys[0].index(key) for key in keys[0]] == [0, 1, 2, 3, 4, 5, 0, 7]


def test_a_resumed_run_has_the_vectors_of_before_and_no_other_rows(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 2}
    whole, checkpoint = anchored(tmp_path, 3.0, **arguments), str(tmp_path / "checkpoint-2")
    for rows in (ROWS, make_rows(32, seed=5)):
        trainer = make_trainer(copy.deepcopy(whole.model), rows, tmp_path, "anchor", STILL, lam=3.0)
        if rows is not ROWS:
            with pytest.raises(ValueError, match=r"not among the training rows.*the run that is"):
                trainer.train(checkpoint)
            continue
        trainer.train(checkpoint)
        assert penalties(trainer) == pytest.approx(penalties(whole), abs=1e-6)
        weights = zip(trainer.model.parameters(), whole.model.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in weights)


# Defaults, and what may not be


@pytest.mark.parametrize(("penalty", "lam"), [("anchor", 0.1), ("istar", 1.0), (None, 1.0)])
def test_the_weight_of_an_anchor_is_less_by_default(penalty, lam, tmp_path):
    trainer = make_trainer(plain_model(), ROWS, tmp_path, penalty)
    assert trainer.isotropy_objective.joint.weight == pytest.approx(lam)
    places = {"anchor": "mean", "istar": "all", None: "head_input"}
    assert trainer.isotropy_objective.place == places[penalty]


# The function


def test_the_function_keeps_the_vectors_of_a_model(tmp_path):
    base = save_pair(make_model(kind="AutoModel"), make_tokenizer(), tmp_path / "base")
    texts = [f"{text} {word}" for text in TEXTS for word in ("cat", "dog", "mat", "tree")]
    labels = ["cat" in text.split()[-1] for text in texts]
    options = {"epochs": 8, "lr": 1e-2, "batch_size": 8, "random_state": 0, "device": "cpu"}
    vectors = [torch.tensor(TransformerEncoder(base, pooling="mean").transform(texts))]
    for penalty in (None, "anchor"):
        out = tmp_path / str(penalty)
        finetune_text_classifier(base, texts, labels, out, penalty=penalty, **options)
        encoder = TransformerEncoder(out, pooling="mean", device="cpu")
        vectors.append(torch.tensor(encoder.transform(texts)))
    plain, kept = (mean_cosine(vectors[0], after) for after in vectors[1:])
    assert kept > plain + 0.05
