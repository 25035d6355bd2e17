"""Readouts of any columns as folders whose vectors one file of code computes, without isoadapt."""

import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone

from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder, Whitening, load_checkpoint
from isoadapt.interop import to_sentence_transformer
from isoadapt.metrics import isotropy_report
from tests.cli.command_line import run, succeed
from tests.encoders.changes import change_weights
from tests.interop.conftest import LENGTH
from tests.interop.examples import ROWS, without_isoadapt
from tests.interop.test_sentence_transformer import readout
from tests.tiny_models import TEXTS, make_model, make_tokenizer, save_model, save_pair

library = pytest.importorskip("sentence_transformers", "6.0")
CODE = "isoadapt_readout.py"
KINDS = ["layers", "aligned"]


@pytest.fixture(scope="module")
def models(checkpoint, tmp_path_factory):
    """Fitted readouts by kind, and a folder with the exports under their names."""
    place = tmp_path_factory.mktemp("readouts")
    base = save_pair(make_model(kind="AutoModel"), make_tokenizer(), place / "my-base")
    encoder, teacher = TransformerEncoder(checkpoint, max_length=LENGTH), TransformerEncoder(base)
    aligned = AdaptedEncoder(encoder, TeacherReadout(), teacher, teacher_layers=1, general=ROWS[:9])
    found = {"layers": readout(checkpoint, "readout"), "aligned": aligned.fit(ROWS)}
    for name, model in found.items():
        to_sentence_transformer(model, checkpoint, place / name, normalize=name == "aligned")
    return found, place


@pytest.mark.parametrize("name", KINDS)
def test_vectors_and_logits_of_one_pass_without_isoadapt(name, models, checkpoint, tmp_path):
    loaded = partial(library.SentenceTransformer, trust_remote_code=True, device="cpu")
    with without_isoadapt():
        model = loaded(str(models[1] / name))
        rows = model.encode(TEXTS, batch_size=3, output_value=None)
        model.save(str(tmp_path / "saved"))
        again = loaded(str(tmp_path / "saved")).encode(TEXTS)
    encoder, head = load_checkpoint(checkpoint, max_length=LENGTH)
    expected = models[0][name].transform(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True) if name == "aligned" else 1
    vectors, logits = ([row[key] for row in rows] for key in ("sentence_embedding", "logits"))
    own = head.outputs(encoder.transform(TEXTS))
    for found, wanted in ((vectors, expected), (logits, own), (again, expected)):
        np.testing.assert_allclose(np.array(found), wanted, atol=2e-6 * np.abs(wanted).max())
    assert model.get_embedding_dimension() == expected.shape[1]


@pytest.mark.parametrize("name", KINDS)
def test_check_runs_the_code_only_if_it_is_the_one_that_is_written(name, models, tmp_path):
    folder = shutil.copytree(models[1] / name, tmp_path / name)
    ran, code = folder / "ran", (folder / CODE).read_text()
    assert succeed("check", folder).stdout.count("as exported") == 2
    (folder / CODE).write_text(f"{code}\nopen({str(ran)!r}, 'w')\n")
    refused = run("check", folder).stdout
    assert re.search(f"cannot be used: .*{CODE}.* --trust-remote-code", refused)
    assert "AutoModelForSequenceClassification: logits" in refused
    assert not ran.exists()
    assert succeed("check", folder, "--trust-remote-code").stdout.count("as exported") == 2
    ran.unlink()
    (folder / CODE).rename(folder / "other.py")
    (folder / CODE).write_text(code)
    modules = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text(modules.replace("isoadapt_readout.", "other."))
    assert re.search(r"modules.json is .* instead of", run("check", folder).stdout)
    assert not ran.exists()


@pytest.mark.parametrize("name", KINDS)
def test_an_encoder_reads_the_exported_vectors_without_running_the_code(name, models, tmp_path):
    expected = models[0][name].transform(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True) if name == "aligned" else 1
    folder = shutil.copytree(models[1] / name, tmp_path / name)
    encoder = TransformerEncoder(folder, pooling="exported", cache=tmp_path / "cache")
    for _ in range(2):
        found = clone(encoder).transform(TEXTS)
        np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
    short = clone(encoder).set_params(max_length=4).transform(TEXTS)
    assert not np.allclose(short, found, atol=1e-3)
    assert encoder.head() is None
    with pytest.warns(UserWarning, match="also holds repaired vectors.*pooling='exported'"):
        AdaptedEncoder(folder, Whitening()).fit(TEXTS)
    (folder / CODE).write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match=f"not the {CODE} that .* trust_remote_code=True"):
        encoder.transform(TEXTS)
    assert not (folder / "ran").exists()


def without_a_weight(weights):
    name = next(name for name in weights if name.endswith("layer.0.attention.self.query.weight"))
    return {other: weights[other] for other in weights if other != name}


def not_a_number(weights):
    return weights | {"matrix": weights["matrix"] * torch.nan}


def test_a_damaged_or_longer_folder_is_refused_as_that_of_an_encoder_is(models, tmp_path):
    def read(folder, **options):
        TransformerEncoder(folder, pooling="exported", **options).transform(TEXTS)

    folder = shutil.copytree(models[1] / "aligned", tmp_path / "folder")
    with pytest.raises(ValueError, match="max_length=5000, but the model has positions for"):
        read(folder, max_length=5000)
    with pytest.raises(ValueError, match="single texts, not of pairs"):
        TransformerEncoder(folder, pooling="exported").transform([("a", "b")])
    for file, change, says in (
        ("model.safetensors", without_a_weight, "has no weights for"),
        ("readout.safetensors", not_a_number, "NaN or infinite"),
    ):
        whole = (folder / file).read_bytes()
        change_weights(folder, change, file)
        with pytest.raises(ValueError, match=says):
            read(folder)
        (folder / file).write_bytes(whole)
    modules = json.loads((folder / "modules.json").read_text())
    module = {"idx": 1, "name": "1", "path": "", "type": "sentence_transformers.models.Normalize"}
    (folder / "modules.json").write_text(json.dumps([*modules, module]))
    with pytest.raises(ValueError, match=r"not that of a readout alone.* trust_remote_code=True"):
        read(folder)


def test_an_audit_says_which_vectors_are_in_the_folder_and_measures_them(models, tmp_path):
    texts, folder = tmp_path / "texts.txt", str(models[1] / "aligned")
    texts.write_text("\n".join(ROWS))
    step = f"isoadapt audit {folder} {texts} --vectors exported"
    assert step in succeed("audit", folder, texts).stdout
    shown = succeed(*step.split()[1:]).stdout
    assert "Vectors: one for each text, vectors of sentence-transformers" in shown
    found = json.loads(succeed(*step.split()[1:], "--json").stdout)["mean_cosine"]
    report = isotropy_report(models[0]["aligned"].transform(ROWS))
    assert found == pytest.approx(report.mean_cosine, abs=1e-5)


def test_the_card_names_the_teacher_and_the_code(models, monkeypatch):
    cards = {name: (models[1] / name / "README.md").read_text() for name in KINDS}
    assert "last 1 layer(s) of the teacher, `my-base`" in cards["aligned"]
    assert "licence" not in cards["layers"]
    assert str(models[1]) not in (models[1] / "aligned" / "readout.json").read_text()
    monkeypatch.chdir(models[1])
    first, second = re.findall(r"```python\n(.*?)```", cards["aligned"], re.DOTALL)
    with without_isoadapt():
        exec(first + second, {})
    assert ["trust_remote_code=True" in snippet for snippet in (first, second)] == [True, False]


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [("gpt2", [("head_input", -1), ("max", 1)]), ("bart", [("cls", 0)]), ("xlnet", "readout")],
)
def test_other_architectures(architecture, pooling, tmp_path):
    """The writer compares vectors and logits, also of an empty text; XLNet's has no classifier."""
    kind = "AutoModel" if architecture == "xlnet" else "AutoModelForSequenceClassification"
    folder = save_model(tmp_path / "model", architecture, kind=kind)
    model = readout(folder, pooling)
    out = to_sentence_transformer(model, folder, tmp_path / "out")
    assert (out / CODE).exists()
    found = TransformerEncoder(out, pooling="exported").transform(TEXTS)
    np.testing.assert_allclose(found, model.transform(TEXTS), atol=2e-5 * np.abs(found).max())
    if architecture == "xlnet":
        np.testing.assert_array_equal(TransformerEncoder(out).transform(TEXTS), found)


def test_an_older_library_would_run_the_code_unasked(models, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "__version__", "5.6.1")
    with pytest.raises(ImportError, match=r"unasked in sentence-transformers 5.6.1: install 6.0"):
        to_sentence_transformer(models[0]["layers"], checkpoint, tmp_path / "out")
