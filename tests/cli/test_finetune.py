"""Fine-tuning on the command line."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import matthews_corrcoef

from isoadapt import LinearHead, load_checkpoint
from isoadapt.cli import _finetune
from isoadapt.cli._finetune import _make_options
from isoadapt.finetune._penalties import PENALTIES
from isoadapt.losses import IsoScoreLoss
from isoadapt.metrics import anisotropy, isoscore
from tests.cli.command_line import refuse, run, succeed, texts_and_labels, write_table

QUICK = [f"--set={each}" for each in ("epochs=1", "random_state=0", "device=cpu", "lr=1e-3")]
LINE = ["finetune", "--model", "my-model", "--train", "train.tsv"]


@pytest.fixture
def calls(files, monkeypatch):
    """What the command gives to finetune_text_classifier, which is not run."""
    calls = []
    noted = lambda *given, **options: calls.append((*given, options))  # noqa: E731
    monkeypatch.setattr(_finetune, "finetune_text_classifier", noted)
    return calls


class TestOptions:
    def test_the_options_reach_the_function(self, calls):
        settings = "--set lam=-1 --set zeta=.2 --epochs 4 --set lr=1e-3 --where 1,2"
        completed = succeed(*LINE, "--penalty", "istar", *settings.split(), "--max-length", 7)
        assert completed.stdout == "Checkpoint: isoadapt-finetuned\n"
        [(model, texts, labels, out, options)] = calls
        assert (model, str(out)) == ("my-model", "isoadapt-finetuned")
        assert (texts, labels.tolist()) == (texts_and_labels("train.tsv")[0], [0, 1, 2] * 30)
        loss = options.pop("penalty")
        assert (type(loss), loss.zeta, loss.form) == (IsoScoreLoss, 0.2, "linear")
        own = {"epochs": 4, "lr": 1e-3, "lam": -1, "where": (1, 2)}
        assert options == own | {"max_length": 7, "overwrite": False, "verbose": 1}
        own = "--batch-size 8 --lr 1e-3 --out b"
        succeed(*LINE, "--quiet", "--overwrite", *own.split())
        *_, out, options = calls[1]
        own = {"batch_size": 8, "lr": 1e-3, "max_length": 128, "overwrite": True, "verbose": 0}
        assert (str(out), options) == ("b", own)
        write_table("odd.tsv", texts, labels, ("question", "answer", "topic"))
        train = [*LINE[:-1], "odd.tsv", "--label", "topic"]
        refuse("name them by --text ", *train)
        succeed(*train, "--text", "question,answer")
        assert calls[2][1] == list(zip(texts, texts[::-1], strict=True))
        assert calls[2][2].tolist() == labels.tolist()

    def test_several_columns_of_labels_and_weights_of_classes(self, calls):
        texts, labels = texts_and_labels("train.tsv")
        table = pd.DataFrame({"words": texts, "Rude": labels % 2, "kind": labels // 2})
        table.to_csv("several.tsv", sep="\t", index=False)
        train = [*LINE[:-1], "several.tsv"]
        succeed(*train, "--label", "rude,kind")
        [(_, found, several, _, _)] = calls
        assert found == texts
        pd.testing.assert_frame_equal(several, table[["Rude", "kind"]])
        refuse("label='kin' is not .*'kind'", *train, "--label", "rude,kin")
        succeed(*LINE, "--class-weight", "balanced")
        succeed(*LINE, "--set", "class_weight={2: 5}")
        assert [call[-1]["class_weight"] for call in calls[1:]] == ["balanced", {2: 5}]

    def test_every_penalty_has_its_loss_and_the_place_of_its_paper(self):
        for name, method in PENALTIES.items():
            for settings, lam in (["lam=0.3"], 0.3), ([], 0.1 if name == "anchor" else 1.0):
                options = _make_options(name, settings)
                assert isinstance(options["penalty"], type(method.make()))
                assert (options["lam"], options["where"]) == (lam, method.where)


class TestDev:
    def test_a_classifier_is_evaluated(self, files):
        texts, labels = texts_and_labels("dev.tsv")
        names = np.array(["no", "so-so", "yes"])
        for name in ("train", "dev"):
            write_table(f"{name}-names.tsv", *(texts_and_labels(f"{name}.tsv")[0], names[labels]))
        options = ["--dev", "dev-names.tsv", "--max-length", 5, "--out", "a"]
        completed = succeed(*LINE[:-1], "train-names.tsv", *options, *QUICK)
        encoder, head = load_checkpoint("a", max_length=5)
        X = encoder.transform(texts)
        expected = {
            "accuracy": head.score(X, names[labels]),
            "Matthews": matthews_corrcoef(names[labels], head.predict(X)),
            "IsoScore": isoscore(X),
            "corrected": isoscore(X, bias_corrected=True),
            "anisotropy_1": anisotropy(X, k=1),
        }
        figures = dict(re.findall(r"^ *(\S+) +(-?[\d.e-]+)$", completed.stdout, re.M))
        assert figures.items() >= {name: f"{value:.4g}" for name, value in expected.items()}.items()
        assert "On the 90 texts of dev-names.tsv:" in completed.stdout

    def test_a_classifier_that_predicts_one_class_is_told(self, calls, monkeypatch):
        encoder, head = load_checkpoint("my-model")
        centred = -head.coef_ @ encoder.transform(texts_and_labels("dev.tsv")[0]).mean(axis=0)
        for bias, told in (([0, 9, 0], True), (centred, False)):
            one = encoder, LinearHead(head.coef_ * (not told), bias, classes=[0, 1, 2])
            monkeypatch.setattr(_finetune, "load_checkpoint", lambda *_, one=one, **__: one)
            completed = succeed(*LINE, "--dev", "dev.tsv")
            note = "Note: the classifier predicts 1 for all texts of dev.tsv: train longer"
            assert (note in completed.stderr) == told

    def test_several_labels_are_evaluated_together(self, files):
        texts, labels = texts_and_labels("dev.tsv")
        table = pd.DataFrame({"sentence": texts, "rude": labels % 2, "kind": labels // 2})
        table.to_csv("dev-several.tsv", sep="\t", index=False)
        options = ["--label", "kind,rude", "--dev", "dev-several.tsv", "--out", "a"]
        completed = succeed(*LINE[:-1], "dev-several.tsv", *options, *QUICK)
        encoder, head = load_checkpoint("a")
        assert head.classes_.tolist() == ["kind", "rude"]
        X, right = encoder.transform(texts), table[["kind", "rude"]]
        matthews = matthews_corrcoef(np.ravel(right), np.ravel(head.predict(X)))
        assert re.search(rf"accuracy +{head.score(X, right):.4g}\n", completed.stdout)
        assert re.search(rf"Matthews +{matthews:.4g}\n", completed.stdout)
        table.replace({"kind": {1: 2}}).to_csv("odd.tsv", sep="\t", index=False)
        options[3:] = ["odd.tsv", "--out", "b"]
        refuse("label 2, which does not occur", *LINE[:-1], "dev-several.tsv", *options)

    def test_a_regression_on_pairs_is_evaluated(self, files):
        texts, labels = texts_and_labels("dev.tsv")
        write_table("pairs.tsv", texts, labels + 0.5, ("sentence1", "sentence2", "label"))
        train = [*LINE[:-1], "pairs.tsv", "--dev", "pairs.tsv", "--out", "a"]
        completed = succeed(*train, "--penalty", "istar", *QUICK)
        encoder, head = load_checkpoint("a")
        X = encoder.transform(list(zip(texts, texts[::-1], strict=True)))
        expected = np.corrcoef(head.predict(X), labels + 0.5)[0, 1]
        assert re.search(rf"correlation +{expected:.4g}\n", completed.stdout)
        assert re.search(rf"R² +{head.score(X, labels + 0.5):.4g}\n", completed.stdout)

    def test_a_model_that_cannot_be_evaluated_is_kept(self, files):
        write_table("same.tsv", ["unknown", "words", "only"], [0, 1, 2])
        completed = run(*LINE, "--dev", "same.tsv", "--out", "out", "--set", "epochs=1")
        assert "out holds the fine-tuned checkpoint, but" in completed.stderr
        assert (files / "out" / "model.safetensors").is_file()
