"""The anchor: vectors of texts stay near those of the model before the training."""

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


def away(model, rows=ROWS):
    """1 minus the mean cosine of mean-pooled vectors to those of the model before training."""
    ids, mask = (torch.tensor([row[k] for row in rows]) for k in ("input_ids", "attention_mask"))
    with torch.inference_mode():
        pair = [each.eval().base_model(ids, mask)[0] for each in (plain_model(), model)]
    means = [(states * mask[:, :, None]).sum(1) for states in pair]
    return 1 - torch.cosine_similarity(*means).mean().item()


def penalties(trainer):
    return [entry["penalty"] for entry in trainer.state.log_history if "penalty" in entry]


def anchored(folder, lam=None, rows=ROWS, penalty="anchor", make=plain_model, **arguments):
    trainer = make_trainer(make(), rows, folder, penalty, STILL | arguments, lam=lam)
    trainer.train()
    return trainer


def test_it_is_1_minus_the_mean_cosine_to_the_vectors_of_before(tmp_path):
    """So it is 0 in the first step; rows that are equal count too."""
    rows = [*ROWS[:16], *ROWS[:8], *ROWS[:8]]
    trainers = [anchored(tmp_path, rows=rows, max_steps=steps) for steps in (3, 4)]
    expected = away(trainers[0].model, rows[24:])
    assert penalties(trainers[1])[::3] == pytest.approx([0, expected], rel=1e-3, abs=1e-6)
    assert expected > 1e-3
    assert len(trainers[0].isotropy_objective.penalty.texts) == 16


def test_its_gradient_pulls_the_vectors_back_by_its_weight(tmp_path):
    options = {"learning_rate": 0.05, "max_steps": 12}
    none, some, more = (away(anchored(tmp_path, lam, **options).model) for lam in (0.0, 0.3, 1.0))
    assert none > 1.5 * some > 1.5 * more


def test_with_the_weight_0_training_is_that_without_a_penalty(tmp_path):
    """To the bit, with dropout and shuffled rows: encoding draws no random number of others."""
    options = {"train_sampling_strategy": "group_by_length", "make": make_model}
    found = anchored(tmp_path, 0.0, **options)
    expected = anchored(tmp_path, penalty=None, **options)
    weights = (each.model.parameters() for each in (found, expected))
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
    assert min(penalties(found)) > 1e-3  # dropout


def test_parts_of_a_step_are_a_whole_batch(tmp_path):
    whole = anchored(tmp_path, 3.0)
    found = anchored(tmp_path, 3.0, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    for name, expected in whole.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], expected, atol=1e-5, rtol=1e-4)
    assert penalties(found) == pytest.approx(penalties(whole), abs=1e-5)


def test_a_stream_is_encoded_and_evaluation_is_that_of_the_task(tmp_path):
    stream = anchored(tmp_path, rows=Stream(ROWS), max_steps=4)
    assert penalties(stream) == pytest.approx(penalties(anchored(tmp_path)), abs=1e-6)
    strange = make_rows(8, seed=7)  # of which no vector from before is known
    batch = {name: torch.tensor([row[name] for row in strange]) for name in strange[0]}
    loss = stream.model.eval()(**batch).loss.item()
    assert stream.evaluate(strange)["eval_loss"] == pytest.approx(loss, rel=1e-5)


def test_a_text_is_known_by_its_tokens_wherever_the_padding_is():
    watch, tokenizer, keys = Watch(plain_model(), "mean"), make_tokenizer(), []
    options = {"padding": "max_length", "return_tensors": "pt"}
    for side, length in (("left", 24), ("right", 24), ("right", 30)):
        inputs = tokenizer(TEXTS, padding_side=side, max_length=length, **options)
        keys.append(watch.text_keys(inputs).tolist())
    assert keys[1:] == keys[:1] * 2
    assert [keys[0].index(key) for key in keys[0]] == [0, 1, 2, 3, 4, 5, 0, 7]


def test_a_resumed_run_takes_no_other_rows(tmp_path):
    anchored(tmp_path, save_strategy="steps", save_steps=2)
    trainer = make_trainer(plain_model(), make_rows(32, seed=5), tmp_path, "anchor", STILL)
    with pytest.raises(ValueError, match=r"not among the training rows.*the run that is resumed"):
        trainer.train(str(tmp_path / "checkpoint-2"))


def test_its_weight_is_less_by_default(tmp_path):
    known = {"anchor": (0.1, "mean"), "istar": (1.0, "all"), None: (1.0, "head_input")}
    for penalty, expected in known.items():
        objective = make_trainer(plain_model(), ROWS, tmp_path, penalty).isotropy_objective
        assert (objective.joint.weight.item(), objective.place) == expected


def test_the_function_keeps_the_vectors_of_a_model(tmp_path):
    base = save_pair(make_model(kind="AutoModel"), make_tokenizer(), tmp_path / "base")
    texts = [f"{text} {word}" for text in TEXTS for word in ("cat", "dog", "mat", "tree")]
    labels = ["cat" in text.split()[-1] for text in texts]
    options = {"epochs": 3, "lr": 2e-2, "batch_size": 8, "random_state": 0, "device": "cpu"}
    folders = [base]
    for penalty in (None, "anchor"):
        out, options["penalty"] = tmp_path / str(penalty), penalty
        folders.append(finetune_text_classifier(base, texts, labels, out, **options))
    encoders = (TransformerEncoder(each, pooling="mean", device="cpu") for each in folders)
    before, plain, kept = (torch.tensor(each.transform(texts)) for each in encoders)
    plain, kept = (torch.cosine_similarity(before, each).mean() for each in (plain, kept))
    assert kept > plain + 0.05
