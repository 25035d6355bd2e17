"""Live models in wrappers give the vectors of the model inside; others are refused by name."""

import functools
import gc
import weakref

import numpy as np
import pytest
import torch
import transformers

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from isoadapt.encoders._kept import encodings_kept
from tests.tiny_models import TEXTS, logits_of, make_model, make_tokenizer

compiled = functools.partial(torch.compile, backend="eager")


def part_compiled(model, part="bert"):
    setattr(model, part, compiled(getattr(model, part)))
    return model


def test_a_model_lives_as_long_as_its_vectors_are_kept():
    """Otherwise another model could get its number, and its vectors."""
    encoder = TransformerEncoder((make_model(), make_tokenizer()))
    model = weakref.ref(encoder.model[0])
    with encodings_kept():
        vectors = encoder.transform(TEXTS[::-1])
        np.testing.assert_array_equal(encoder.transform([*TEXTS, TEXTS[0]])[::-1][1:], vectors)
        del encoder
        gc.collect()
        assert model() is not None
    gc.collect()
    assert model() is None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: compiled(torch.nn.DataParallel(model)),
        part_compiled,
        functools.partial(part_compiled, part="forward"),
    ],
)
def test_a_wrapped_model_gives_the_vectors_of_the_model(wrap):
    """In training mode, the dropout of a module that was not copied would change the vectors."""
    tokenizer, dropout = make_tokenizer(), {"hidden_dropout_prob": 0.5}
    model = wrap(make_model(**dropout).train())
    expected, head = load_checkpoint((make_model(**dropout), tokenizer))
    encoder, same = load_checkpoint((model, tokenizer))
    np.testing.assert_allclose(encoder.transform(TEXTS), expected.transform(TEXTS), atol=1e-5)
    np.testing.assert_array_equal(same.coef_, head.coef_)
    assert model.training


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda model: model.to("meta"), "sharded or offloaded"),
        (torch.nn.Sequential, "Sequential"),
        (lambda model: make_model("ibert", quant_mode=True), "is quantised"),
    ],
)
def test_a_model_that_is_not_used_is_refused_by_name(change, says, live):
    model, tokenizer = change(live[0]), live[1]
    for pooling in ("mean", "auto"):
        with pytest.raises((TypeError, ValueError), match=says):
            TransformerEncoder((model, tokenizer), pooling=pooling).transform(TEXTS)


def test_other_objects_are_refused_by_name(live):
    model, tokenizer = live
    swapped = tokenizer, model
    for other, says in [(model, "tokenizer"), (3, "int"), (swapped, "must be a PreTrainedModel")]:
        with pytest.raises(TypeError, match=says):
            TransformerEncoder(other).transform(TEXTS)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_hooks_that_record_outputs_are_accepted(architecture):
    """Those of transformers, which a model gets when it is asked for hidden states."""
    live = make_model(architecture), make_tokenizer(architecture)
    expected = TransformerEncoder(live).transform(TEXTS[:2])
    live[0](**live[1](TEXTS[0], return_tensors="pt"), output_hidden_states=True)
    live[0].enable_input_require_grads()
    np.testing.assert_array_equal(TransformerEncoder(live).transform(TEXTS[:2]), expected)


class Passing(transformers.BertForSequenceClassification):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def passing(model):
    model.__class__ = Passing
    return model


def normed(model):
    torch.nn.utils.parametrizations.weight_norm(model.classifier)
    return model


def doubled(model):
    part = model.get_submodule("bert.encoder.layer.0.output.dense")
    part.register_forward_hook(lambda *given: 2 * given[-1])
    return model


@pytest.mark.parametrize("change", [passing, normed, doubled])
def test_hooks_inside_the_base_model_and_computed_weights_are_used(change):
    model, tokenizer = change(make_model()), make_tokenizer()
    encoder, head = load_checkpoint((model, tokenizer))
    found = head.outputs(encoder.transform(TEXTS))
    np.testing.assert_allclose(found, logits_of(model, TEXTS), atol=1e-5)
