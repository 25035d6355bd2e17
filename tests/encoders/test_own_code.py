"""Checkpoints whose own Python code computes the model: what runs is what the files say."""

import json

import numpy as np
import pytest
import transformers
from transformers import dynamic_module_utils as utils

from isoadapt import AdaptedEncoder, AffineAdapter, TransformerEncoder, load_checkpoint
from isoadapt.encoders import EmbeddingCache
from isoadapt.interop import merge_into_checkpoint, to_sentence_transformer
from tests.cli.command_line import run, succeed
from tests.encoders.changes import edit
from tests.tiny_models import OWN_CODE, TEXTS, logits_of, make_tokenizer, save_own_code, save_pair

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")

MODULES = [("", "sentence_transformers.models.Transformer")]
MODULES += [("1_Pooling", "sentence_transformers.models.Pooling")]
SENTENCE = {  # files of sentence-transformers; the library computes a prompt
    "modules.json": [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(MODULES)
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers.json": {"prompts": {"q": "the "}, "default_prompt_name": "q"},
}


@pytest.mark.parametrize("by_library", [False, True])
@pytest.mark.parametrize("file", ["modeling_own.py", "layers_own.py"])
def test_changed_code_runs_and_has_rows_of_its_own(file, by_library, tmp_path):
    folder = save_own_code(tmp_path / "model", kind="AutoModel")
    if by_library:
        pytest.importorskip("sentence_transformers")
        (folder / "1_Pooling").mkdir()
        for name, content in SENTENCE.items():
            (folder / name).write_text(json.dumps(content))
    cache = EmbeddingCache(tmp_path / "cache")
    encoder = TransformerEncoder(folder, trust_remote_code=True, cache=cache)
    before = encoder.transform(TEXTS)
    changed = OWN_CODE[file].replace("2.0 *", "-2.0 *").replace("= scaled(", "= -scaled(")
    (folder / file).write_text(changed)
    np.testing.assert_allclose(encoder.transform(TEXTS), -before, atol=1e-5)
    (folder / file).write_text(OWN_CODE[file])
    np.testing.assert_array_equal(encoder.transform(TEXTS), before)
    assert cache.stats().misses == 2 * len(set(TEXTS))


def test_a_configuration_of_transformers_keeps_its_own_class(tmp_path):
    folder = save_own_code(tmp_path / "model", kind="AutoModel")
    plain = OWN_CODE["modeling_own.py"].replace(".configuration_own import", "transformers import")
    (folder / "modeling_own.py").write_text(plain.replace("OwnConfig", "BertConfig"))
    own = {"AutoModel": "modeling_own.OwnModel"}
    edit(folder, model_type="bert", architectures=["BertModel"], auto_map=own)
    trusted = TransformerEncoder(folder, trust_remote_code=True).transform(TEXTS)
    np.testing.assert_allclose(trusted, 2 * TransformerEncoder(folder).transform(TEXTS), atol=1e-5)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A folder with the files of the repository own/impl, for those who may ask the Hub."""
    place, read = tmp_path / "models--own--impl/snapshots" / ("a" * 40), utils.cached_file

    def cached_file(name, file, **options):
        if name == "own/impl" and options["local_files_only"]:
            raise OSError("it is not in the cache")
        return str(place / file) if name == "own/impl" else read(name, file, **options)

    monkeypatch.setattr(utils, "cached_file", cached_file)
    monkeypatch.setattr(utils, "is_offline_mode", lambda: False)
    place.mkdir(parents=True)
    return place


TOKENIZER = """
from transformers import PreTrainedTokenizerFast

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("kind", ["whole", "peft", "elsewhere"])
def test_exported_folders_carry_the_code(kind, tmp_path, hub):
    for package in ("sentence_transformers", "peft"):
        pytest.importorskip(package)
    auto, trusted = transformers.AutoModelForSequenceClassification, {"trust_remote_code": True}
    folder, files = save_own_code(tmp_path / "model"), {*OWN_CODE}
    if kind == "elsewhere":
        for file in OWN_CODE:
            (folder / file).rename(hub / file)
        names = json.loads((folder / "config.json").read_text())["auto_map"].items()
        edit(folder, auto_map={auto: f"own/impl--{name}" for auto, name in names})
        files = set()  # transformers writes some
    model = auto.from_pretrained(folder, **trusted).eval()
    if kind == "peft":
        import peft

        config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], bias="all")
        model = peft.get_peft_model(model, config).eval()
        for weights in model.parameters():
            weights.data.add_(0.1 * weights.requires_grad)
        folder = save_pair(model, make_tokenizer(), tmp_path / "adapter")
        names = {"AutoTokenizer": [None, "tokenizer_own.OwnTokenizer"]}
        edit(folder, "tokenizer_config.json", auto_map=names)
        (folder / "tokenizer_own.py").write_text(TOKENIZER)
        files |= {"tokenizer_own.py"}
    expected = logits_of(model, TEXTS)
    encoder, _ = load_checkpoint(folder, **trusted)
    head = encoder.head()
    adapter = AffineAdapter(2 * np.eye(head.n_features_in_), head=head, head_training="frozen")
    fitted = AdaptedEncoder(encoder, adapter).fit(TEXTS * 4)
    X = encoder.transform(TEXTS)
    expected = expected + head.outputs(2 * X) - head.outputs(X)
    merged = merge_into_checkpoint(fitted, folder, tmp_path / "merged")
    served = to_sentence_transformer(fitted, folder, tmp_path / "served")
    card = (served / "README.md").read_text("utf-8")
    assert 'SentenceTransformer("served", trust_remote_code=True)' in card
    for out in (merged, served):
        assert files in (set(), {file.name for file in out.glob("*.py")})
        assert not (out / "adapter_config.json").exists()
        found = logits_of(auto.from_pretrained(out, **trusted).eval(), TEXTS)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(ValueError, match="trust_remote_code"):  # which the adapter does not know
        merge_into_checkpoint(fitted.pipeline_[-1], folder, tmp_path / "other")
    refused = run("check", served)
    assert refused.code == 1
    assert "trust_remote_code" in refused.stdout
    succeed("check", served, "--trust-remote-code")


@pytest.mark.parametrize("trusted", [False, True])
def test_exported_folders_have_no_code_that_does_not_run(trusted, tmp_path):
    """Of a model that transformers knows: its own, without permission, or that of another tool."""
    folder = save_own_code(tmp_path / "model")
    edit(folder, model_type="bert", architectures=["BertForSequenceClassification"])
    if trusted:
        config = json.loads((folder / "config.json").read_text())
        del config["auto_map"]
        (folder / "config.json").write_text(json.dumps(config))
    encoder, head = load_checkpoint(folder, trust_remote_code=trusted)
    adapter = AffineAdapter(2 * np.eye(16), head=head, head_training="frozen")
    fitted = AdaptedEncoder(encoder, adapter).fit(TEXTS * 4)
    merged = merge_into_checkpoint(fitted, folder, tmp_path / "merged")
    assert not [*merged.glob("*.py")]
    expected = fitted.pipeline_[-1].head_.outputs(fitted.transform(TEXTS))
    again, head = load_checkpoint(merged, trust_remote_code=True)
    np.testing.assert_allclose(head.outputs(again.transform(TEXTS)), expected, atol=1e-4)
