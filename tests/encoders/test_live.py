"""Live models in wrappers give the vectors of the model inside; others are refused by name."""

import functools
import types

import numpy as np
import peft
import pytest
import torch
import transformers

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from tests.tiny_models import ARCHITECTURES, TEXTS, logits_of, make_model, make_tokenizer

compiled = functools.partial(torch.compile, backend="eager")


def part_compiled(model):
    model.bert = compiled(model.bert)
    return model


def compiled_in_place(model):
    model.bert.encoder.layer[0].compile(backend="eager")
    model.compile(backend="eager")
    return model


def bound(model):
    model.forward = types.MethodType(type(model).forward, model)
    return model


def distributed(model, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1
    )
    return torch.nn.parallel.DistributedDataParallel(model)


@pytest.fixture
def no_group():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "wrap",
    [
        compiled,
        torch.nn.DataParallel,
        lambda model: compiled(torch.nn.DataParallel(model)),
        part_compiled,
        compiled_in_place,
        bound,
        distributed,
    ],
)
def test_a_wrapped_model_gives_the_vectors_of_the_model(wrap, tmp_path, no_group):
    """In training mode, the dropout of a module that was not copied would change the vectors."""
    tokenizer, dropout = make_tokenizer(), {"hidden_dropout_prob": 0.5}
    model = make_model(**dropout).train()
    model = wrap(model, tmp_path) if wrap is distributed else wrap(model)
    expected, head = load_checkpoint((make_model(**dropout), tokenizer))
    encoder, same = load_checkpoint((model, tokenizer))
    np.testing.assert_allclose(encoder.transform(TEXTS), expected.transform(TEXTS), atol=1e-5)
    np.testing.assert_array_equal(same.coef_, head.coef_)
    assert model.training


def quantised(model):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def bitsandbytes(model):
    kind = type("Linear8bitLt", (torch.nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    model.bert.pooler.dense.__class__ = kind
    return model


def replaced(model):
    model.bert.forward = functools.partial(type(model.bert).forward, model.bert)
    return model


def hooked(name, pre=False):
    """A function that registers a hook, which doubles the output or does nothing to the input."""

    def change(model):
        module = model.get_submodule(name)
        if pre:
            module.register_forward_pre_hook(lambda module, given: None)
        else:
            module.register_forward_hook(lambda module, given, output: output * 2)
        return model

    return change


def patched(name):
    def change(model):
        module = model.get_submodule(name)
        own = module.forward
        module.forward = types.MethodType(lambda self, *args, **kw: own(*args, **kw), module)
        return model

    return change


@pytest.mark.filterwarnings("ignore")  # of torch.ao and peft
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (quantised, ValueError, "live BertFor.* is quantised; pass a model that is not"),
        (bitsandbytes, ValueError, "live BertFor.* is quantised"),
        (lambda model: model.to("meta"), ValueError, "is sharded or offloaded; save it"),
        (hooked("classifier"), ValueError, r"has a hook or .* module 'classifier'; .*\.remove\(\)"),
        (hooked("classifier", pre=True), ValueError, "has a hook or .* module 'classifier'"),
        (hooked("dropout"), ValueError, "has a hook or .* module 'dropout'"),
        (hooked("", pre=True), ValueError, "has a hook or .* module ''"),
        (patched("classifier"), ValueError, "a replaced function in its module 'classifier'; pass"),
        (patched("bert.encoder.layer.0"), ValueError, r"module 'bert.encoder.layer.0'; pass"),
        (patched(""), ValueError, "a replaced function in its module ''"),
        (replaced, ValueError, "function in its module 'bert'; .*remove_hook_from_module"),
        (lambda model: torch.nn.Sequential(model), TypeError, r"\(Sequential, .* out of a wrapper"),
        (
            lambda model: peft.get_peft_model(
                model.bert, peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["key"])
            ),
            ValueError,
            "merge_and_unload",
        ),
    ],
)
def test_a_model_that_is_not_used_is_refused_by_name(change, error, says):
    live = change(make_model()), make_tokenizer()
    for pooling in ("mean", "auto"):
        with pytest.raises(error, match=says):
            TransformerEncoder(live, pooling=pooling).transform(TEXTS)


@pytest.mark.parametrize("tokenizer", ["bert-base", None, make_tokenizer()._tokenizer, dict])
def test_a_tokenizer_of_another_kind_is_refused(tokenizer):
    with pytest.raises(TypeError, match=f"BertModel, {type(tokenizer).__name__}.*AutoTokenizer"):
        TransformerEncoder((make_model(kind="AutoModel"), tokenizer)).transform(TEXTS)


def test_a_pipeline_is_refused_with_its_parts():
    whole = transformers.pipeline("text-classification", make_model(), tokenizer=make_tokenizer())
    with pytest.raises(TypeError, match=r"TextClassificationPipeline; pass .*\(x.model, x.token"):
        TransformerEncoder(whole).transform(TEXTS)
    TransformerEncoder((whole.model, whole.tokenizer)).transform(TEXTS)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "big_bird", "t5", "bart", "esm", "xlm"])
def test_hooks_that_record_outputs_are_accepted(architecture):
    """Those of transformers, which a model gets when it is asked for hidden states."""
    live = make_model(architecture), make_tokenizer(architecture)
    expected = TransformerEncoder(live).transform(TEXTS[:2])
    live[0](**live[1](TEXTS[0], return_tensors="pt"), output_hidden_states=True)
    live[0].enable_input_require_grads()
    np.testing.assert_array_equal(TransformerEncoder(live).transform(TEXTS[:2]), expected)


@pytest.mark.parametrize("name", ["bert.encoder.layer.0.output.dense", "bert.embeddings.LayerNorm"])
def test_hooks_inside_the_base_model_are_run(name):
    live = hooked(name)(make_model()), make_tokenizer()
    encoder, head = load_checkpoint(live)
    with torch.inference_mode():
        logits = [live[0](**live[1]([text], return_tensors="pt")).logits for text in TEXTS]
    found = head.outputs(encoder.transform(TEXTS))
    np.testing.assert_allclose(found, torch.cat(logits), atol=1e-5)


def test_mixed_precision_is_named_with_a_way_out_that_works():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    expected = TransformerEncoder((make_model(), make_tokenizer())).transform(TEXTS)
    model = accelerator.prepare_model(make_model(), evaluation_mode=True)
    with pytest.raises(ValueError, match=r"a replaced function.*keep_fp32_wrapper=False"):
        TransformerEncoder((model, make_tokenizer())).transform(TEXTS)
    model = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    found = TransformerEncoder((model, make_tokenizer())).transform(TEXTS)
    np.testing.assert_array_equal(found, expected)


class Passing(transformers.BertForSequenceClassification):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def passing(model):
    model.__class__ = Passing
    return model


def normed(name, norm):
    def change(model):
        norm(model.get_submodule(name))
        return model

    return change


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(
    "change",
    [
        passing,
        normed("classifier", torch.nn.utils.parametrizations.weight_norm),
        normed("classifier", torch.nn.utils.weight_norm),
        normed("classifier", torch.nn.utils.parametrizations.orthogonal),
        normed("bert.pooler.dense", torch.nn.utils.parametrizations.weight_norm),
        normed("bert.pooler.dense", torch.nn.utils.weight_norm),
    ],
)
def test_computed_weights_and_a_forward_that_passes_everything_on(change):
    model, tokenizer = change(make_model()), make_tokenizer()
    encoder, head = load_checkpoint((model, tokenizer))
    found = head.outputs(encoder.transform(TEXTS))
    np.testing.assert_allclose(found, logits_of(model, TEXTS), atol=1e-5)
