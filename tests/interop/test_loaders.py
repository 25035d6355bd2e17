"""A written folder stores what it must give, and `isoadapt check` finds what has changed."""

import json
import shutil
import sys

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from isoadapt import TransformerEncoder, Whitening, load_checkpoint
from isoadapt.interop import merge_into_checkpoint, to_sentence_transformer
from isoadapt.interop._reference import read_reference
from tests.cli.command_line import fail, run, succeed
from tests.encoders.changes import change_weights, edit, negate
from tests.interop.conftest import LENGTH
from tests.interop.examples import CLASSES, blurred
from tests.tiny_models import save_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:the adapter's head is not the checkpoint's"),
    pytest.mark.xdist_group("onnx"),  # so that one process loads the exporter
]

library = pytest.importorskip("sentence_transformers")
AUTO = "AutoModelForSequenceClassification"
LOADERS = {"sentence": ["SentenceTransformer", AUTO], "merged": [AUTO], "onnx": ["model.onnx"]}
BIAS = "bert.pooler.dense.bias"


@pytest.fixture
def copy(request, tmp_path):
    return lambda kind: shutil.copytree(request.getfixturevalue(kind), tmp_path / kind)


@pytest.mark.parametrize("kind", LOADERS)
def test_an_unchanged_folder_is_as_exported(kind, request):
    folder = request.getfixturevalue(kind)
    version, *lines = succeed("check", folder).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == LOADERS[kind]
    assert all(line.endswith("as exported") for line in lines)
    assert "logits " in lines[-1]
    assert "0 predictions changed" in lines[-1]
    if kind != "merged":
        assert version in (folder / "README.md").read_text()


def change_model(folder):
    if (folder / "model.safetensors").exists():
        return change_weights(folder, lambda weights: weights | {BIAS: 2 * weights[BIAS]})
    import onnx

    graph = onnx.load(folder / "model.onnx")
    weights = next(each for each in graph.graph.initializer if list(each.dims) == [3, 16])
    weights.raw_data = (2 * np.frombuffer(weights.raw_data, np.float32)).tobytes()
    onnx.save(graph, folder / "model.onnx")


def swap_words(folder):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    words = model["vocab"]
    words["cat"], words["dog"] = words["dog"], words["cat"]
    edit(folder, "tokenizer.json", model=model)


def change_reference(folder):
    logits = np.array(json.loads((folder / "reference.json").read_text())["logits"])
    edit(folder, "reference.json", logits=(logits * 1.01).tolist())


NAMES = {"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        ("merged", change_model, "beyond"),
        pytest.param("onnx", change_model, "beyond", marks=pytest.mark.slow),
        ("sentence", swap_words, "beyond"),
        ("merged", lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be"),
        ("merged", change_reference, "beyond"),
        ("onnx", lambda folder: edit(folder, id2label=NAMES), "id2label is"),
    ],
)
def test_what_changed_is_found(kind, change, found, copy):
    folder = copy(kind)
    change(folder)
    done = run("check", folder)
    assert done.code == 1
    assert found in done.stdout


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        ("1_Pooling", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}),
        ("3_Dense", {"activation_function": "torch.nn.Tanh"}),
    ],
)
def test_a_change_for_one_loader_leaves_the_other(file, entries, copy):
    folder = copy("sentence")
    edit(folder / file, **entries)
    done = run("check", folder, "--json")
    loaders = json.loads(done.stdout)["loaders"]
    assert done.code == 1
    assert loaders["SentenceTransformer"]["wrong"]
    classifier = loaders["AutoModelForSequenceClassification"]
    assert classifier["wrong"] is None
    assert classifier["predictions_changed"] == 0


def test_predictions_of_several_labels_are_their_signs(copy):
    folder = copy("sentence")
    edit(folder, problem_type="multi_label_classification")
    settings = json.loads((folder / "reference.json").read_text())["settings"]
    settings |= {"problem_type": "multi_label_classification"}
    edit(change_weights(folder, negate("classifier")), "reference.json", settings=settings)
    loaders = json.loads(run("check", folder, "--json").stdout)["loaders"]
    found = loaders["AutoModelForSequenceClassification"]
    assert found["predictions_changed"] == 2 * found["n_texts"] - 1  # alone, and in a batch


def test_lengths_and_padding_must_be_as_before(copy):
    folder = copy("onnx")
    before = (folder / "tokenizer.json").read_text()
    for entry in ("truncation", "padding"):
        edit(folder, "tokenizer.json", **{entry: None})
        assert run("check", folder).code == 1
        (folder / "tokenizer.json").write_text(before)
    folder = copy("sentence")
    settings = json.loads((folder / "reference.json").read_text())["settings"]
    longer = settings | {"max_length": 700}  # which no text reaches
    edit(folder, "reference.json", settings=longer)
    assert f"max_length is {LENGTH} instead of 700" in run("check", folder).stdout


def test_what_only_a_cross_encoder_reads_is_compared(tmp_path):
    save_model(tmp_path / "base", num_labels=1, num_hidden_layers=1)
    library.CrossEncoder(str(tmp_path / "base")).save_pretrained(str(tmp_path / "cross"))
    edit(tmp_path / "cross", "sentence_bert_config.json", max_seq_length=LENGTH)
    encoder = TransformerEncoder(tmp_path / "cross", pooling="head_input")
    adapter = Whitening(shrinkage=0.1).fit(blurred(encoder))
    folder = merge_into_checkpoint(adapter, tmp_path / "cross", tmp_path / "merged")
    succeed("check", folder)
    served = to_sentence_transformer(adapter, tmp_path / "cross", tmp_path / "served")
    for written in (folder, served):
        assert load_checkpoint(written)[1].classes_.tolist() == [0, 1]  # still of a sigmoid
    edit(folder, "sentence_bert_config.json", max_seq_length="other")
    assert "sentence_bert_config.json is" in run("check", folder).stdout


def test_the_version_is_that_of_the_vectors(source, sentence, onnx, tmp_path):
    def version(folder):
        return read_reference(folder).version

    own = version(sentence)
    assert own == version(onnx)
    others = []
    for adapter, length in (
        (source.adapter, 8),
        (Whitening(head=source.head).fit(source.rows, CLASSES), LENGTH),
        (Whitening().fit(source.rows), LENGTH),  # gives the same vectors
    ):
        encoder = TransformerEncoder(source.folder, max_length=length)
        model = make_pipeline(encoder, adapter)
        out = to_sentence_transformer(model, source.folder, tmp_path / "out", overwrite=True)
        others.append(version(out))
    assert len({own, *others}) == 3
    assert others[1] == others[2]


def test_what_cannot_be_compared_is_said(copy, onnx, monkeypatch):
    folder = copy("sentence")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    done = succeed("check", folder)
    assert "SentenceTransformer: not compared" in done.stdout
    assert "isoadapt[st]" in done.stdout
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run("check", onnx).code == 1  # nothing was compared
    reference = folder / "reference.json"
    reference.write_text(reference.read_text()[:-9])
    assert "is missing or damaged" in fail("check", folder)
    reference.unlink()
    assert "saved with its encoder, or write it again" in fail("check", folder)
    assert "does not exist" in fail("check", folder / "absent")


def test_a_warning_of_the_export_is_no_later_failure(source, tmp_path, monkeypatch):
    kind = library.SentenceTransformer
    encode = kind.encode
    monkeypatch.setattr(kind, "encode", lambda *a, **b: encode(*a, **b) * 1.001)
    with pytest.warns(UserWarning, match="by more than rounding"):
        folder = to_sentence_transformer(source.adapter, source.folder, tmp_path / "out")
    assert "The folder differs by more, without" in (folder / "README.md").read_text()
    succeed("check", folder)
