"""A written folder stores what it must give, and `isoadapt check` finds what has changed."""

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sklearn.pipeline import make_pipeline

from isoadapt import LogitPreservingWhitening, TransformerEncoder, Whitening, load_checkpoint
from isoadapt.interop import (
    export_onnx,
    merge_into_checkpoint,
    save_adapter,
    to_sentence_transformer,
)
from tests.cli.command_line import fail, run, succeed
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model, save_pair

pytest.importorskip("sentence_transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

rng = np.random.default_rng(0)
ROWS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 90)]
LENGTH = 9
LOADERS = {
    "sentence": ["SentenceTransformer", "AutoModelForSequenceClassification"],
    "merged": ["AutoModelForSequenceClassification"],
    "onnx": ["model.onnx"],
}


def export(checkpoint, out, kind, **options):
    """Export one adapter of a checkpoint in one of the kinds of `LOADERS`."""
    encoder = TransformerEncoder(checkpoint, max_length=options.pop("max_length", LENGTH))
    head = load_checkpoint(checkpoint)[1]
    adapter = LogitPreservingWhitening(head, **options.pop("adapter", {}))
    adapter.fit(encoder.transform(ROWS))
    if kind == "merged":
        return merge_into_checkpoint(adapter, checkpoint, out)
    if kind == "onnx":
        return export_onnx(make_pipeline(encoder, adapter), out / "model.onnx", **options).parent
    return to_sentence_transformer(make_pipeline(encoder, adapter), checkpoint, out, **options)


@pytest.fixture(scope="module")
def written(shallow, tmp_path_factory):
    """A folder of each kind, and the same of another checkpoint."""
    place = tmp_path_factory.mktemp("written")
    model = make_model(num_hidden_layers=1)
    model.bert.pooler.dense.bias.data += 0.1
    other = save_pair(model, make_tokenizer(), place / "checkpoint")
    for name, source in (("own", shallow), ("other", other)):
        for kind in LOADERS:
            export(source, place / name / kind, kind)
    return place


@pytest.fixture
def copy(written, tmp_path):
    return lambda kind: shutil.copytree(written / "own" / kind, tmp_path / kind)


def edit(file, change=None, **entries):
    content = json.loads(file.read_text())
    for key, value in entries.items():
        content[key] = value
    file.write_text(json.dumps(change(content) if change else content))


def scale(file, name, factor):
    tensors = load_file(file)
    save_file(tensors | {name: tensors[name] * factor}, file, metadata={"format": "pt"})


def swap_words(tokenizer):
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["cat"], vocabulary["dog"] = vocabulary["dog"], vocabulary["cat"]
    return tokenizer


@pytest.mark.parametrize("kind", LOADERS)
def test_an_unchanged_folder_is_as_exported(kind, written):
    done = succeed("check", written / "own" / kind)
    version, *lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == LOADERS[kind]
    assert all(line.endswith("as exported") for line in lines)
    assert "logits " in lines[-1]
    assert "0 predictions changed" in lines[-1]
    card = (written / "own" / kind / "README.md").read_text() if kind != "merged" else ""
    assert (version in card) == (kind != "merged")


def replace_model(folder, other):
    for file in other.glob("model.*"):
        shutil.copy(file, folder)


NAMES = {"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}
DAMAGES = {
    "model": (replace_model, "beyond"),
    "tokenizer": (lambda folder, _: edit(folder / "tokenizer.json", swap_words), "beyond"),
    "no-tokenizer": (lambda folder, _: (folder / "tokenizer.json").write_text("{"), "cannot be"),
    "reference": (lambda folder, other: shutil.copy(other / "reference.json", folder), "beyond"),
    "labels": (lambda folder, _: edit(folder / "config.json", id2label=NAMES), "id2label is"),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_changed_is_found(kind, damage, written, copy):
    folder, (change, found) = copy(kind), DAMAGES[damage]
    change(folder, written / "other" / kind)
    done = run("check", folder)
    assert done.code == 1
    assert found in done.stdout


SENTENCE = {
    "pooling": lambda folder: edit(
        folder / "1_Pooling" / "config.json",
        pooling_mode_cls_token=False,
        pooling_mode_mean_tokens=True,
    ),
    "length": lambda folder: edit(folder / "sentence_bert_config.json", max_seq_length=LENGTH + 1),
    "modules": lambda folder: (folder / "modules.json").unlink(),
    "scale": lambda folder: scale(
        max(folder.glob("*_Dense")) / "model.safetensors", "linear.weight", 1.01
    ),
}


@pytest.mark.parametrize("part", SENTENCE)
def test_a_change_for_one_loader_leaves_the_other(part, copy):
    folder = copy("sentence")
    SENTENCE[part](folder)
    done = run("check", folder, "--json")
    loaders = json.loads(done.stdout)["loaders"]
    assert done.code == 1
    assert loaders["SentenceTransformer"]["wrong"]
    classifier = loaders["AutoModelForSequenceClassification"]
    assert classifier["wrong"] is None
    assert classifier["predictions_changed"] == 0


def test_what_only_a_cross_encoder_reads_is_compared(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    save_model(tmp_path / "base", num_labels=1)
    library.CrossEncoder(str(tmp_path / "base")).save_pretrained(str(tmp_path / "cross"))
    edit(tmp_path / "cross" / "sentence_bert_config.json", max_seq_length=LENGTH)
    adapter = LogitPreservingWhitening(load_checkpoint(tmp_path / "cross")[1])
    adapter.fit(TransformerEncoder(tmp_path / "cross", pooling="head_input").transform(ROWS))
    folder = merge_into_checkpoint(adapter, tmp_path / "cross", tmp_path / "merged")
    succeed("check", folder)
    for name, entry, shown in (
        ("sentence_bert_config.json", "max_seq_length", "sentence_bert_config.json is"),
        ("config_sentence_transformers.json", "activation_fn", "config_sentence_transformers.json"),
        ("config.json", "problem_type", "problem_type is other"),
    ):
        before = (folder / name).read_text()
        edit(folder / name, **{entry: "other"})
        assert shown in run("check", folder).stdout
        (folder / name).write_text(before)
    (folder / "modules.json").unlink()
    assert "modules.json is None" in run("check", folder).stdout


def test_a_graph_must_truncate_and_pad_as_before(copy):
    for entry, value in (("truncation", None), ("padding", None)):
        folder = copy("onnx")
        edit(folder / "tokenizer.json", **{entry: value})
        assert run("check", folder).code == 1
        shutil.rmtree(folder)


def test_a_long_limit_is_compared_itself(tmp_path):
    """No text reaches 700 tokens."""
    checkpoint = save_model(tmp_path / "long", max_position_embeddings=800)
    folder = export(checkpoint, tmp_path / "out", "sentence", max_length=700)
    succeed("check", folder)
    edit(folder / "sentence_bert_config.json", max_seq_length=650)
    assert "length is 650 tokens instead of 700" in run("check", folder).stdout


def test_predictions_of_several_labels_are_their_signs(tmp_path):
    checkpoint = save_model(tmp_path / "m", problem_type="multi_label_classification")
    folder = export(checkpoint, tmp_path / "out", "sentence")
    scale(folder / "model.safetensors", "classifier.bias", -1)
    scale(folder / "model.safetensors", "classifier.weight", -1)
    loaders = json.loads(run("check", folder, "--json").stdout)["loaders"]
    found = loaders["AutoModelForSequenceClassification"]
    assert found["predictions_changed"] == 2 * found["n_texts"] - 1  # alone, and in a batch


def test_the_version_is_that_of_the_vectors(shallow, written, tmp_path):
    def version(folder):
        return json.loads((folder / "reference.json").read_text())["version"]

    own = version(written / "own" / "sentence")
    assert own == version(written / "own" / "onnx")
    assert version(written / "own" / "merged") is None
    others = [
        version(written / "other" / "onnx"),
        *(
            version(export(shallow, tmp_path / str(number), "sentence", **options))
            for number, options in enumerate(
                [{"max_length": 8}, {"normalize": True}, {"adapter": {"shrinkage": 0.3}}]
            )
        ),
    ]
    assert len({own, *others}) == 5
    encoder = TransformerEncoder(shallow, max_length=LENGTH)
    X = encoder.transform(ROWS)
    versions = []
    for head in (None, load_checkpoint(shallow)[1]):  # another head gives the same vectors
        model = make_pipeline(encoder, Whitening(head=head).fit(X, rng.integers(0, 3, len(X))))
        file = export_onnx(model, tmp_path / f"head-{head is None}" / "model.onnx")
        versions.append(version(file.parent))
    assert versions[0] == versions[1]


def test_what_cannot_be_compared_is_said(copy, written, tmp_path, monkeypatch):
    folder = copy("sentence")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    done = succeed("check", folder)
    assert "SentenceTransformer: not compared" in done.stdout
    assert "isoadapt[st]" in done.stdout
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run("check", written / "own" / "onnx").code == 1  # nothing was compared
    for content in (None, "{", "[1]", (folder / "reference.json").read_text().replace("was", "is")):
        (folder / "reference.json").unlink()
        if content is not None:
            (folder / "reference.json").write_text(content)
        else:
            assert "earlier versions did not write it" in fail("check", folder)
            (folder / "reference.json").touch()
        assert "is missing or damaged" in fail("check", folder)
    assert "is not a folder; check the name" in fail("check", tmp_path / "absent")
    save_adapter(Whitening().fit(rng.normal(size=(9, 3))), tmp_path / "adapter")
    assert "load_adapter compares checksums" in fail("check", tmp_path / "adapter")


def test_a_warning_of_the_export_is_no_later_failure(checkpoint, tmp_path, monkeypatch):
    library = pytest.importorskip("sentence_transformers")
    encode = library.SentenceTransformer.encode
    monkeypatch.setattr(
        library.SentenceTransformer, "encode", lambda *a, **b: encode(*a, **b) * 1.001
    )
    with pytest.warns(UserWarning, match="by more than rounding"):
        folder = export(checkpoint, tmp_path / "out", "sentence")
    succeed("check", folder)


@pytest.mark.parametrize("architecture", ["big_bird", "gpt2", "convbert"])
def test_merging_is_no_stricter_for_models_that_are_not_reproducible(architecture, tmp_path):
    """A big_bird computes its attention in another way after its first short text."""
    folder = save_model(tmp_path / "model", architecture)
    succeed("check", export(folder, tmp_path / "out", "merged"))
