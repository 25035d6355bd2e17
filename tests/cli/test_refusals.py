"""What every command refuses: in one line, with its exit status, and without leaving a file."""

import io
import shlex

import numpy as np
import pytest

from isoadapt import Whitening
from isoadapt.finetune._recipes import PENALTIES, RECIPES
from isoadapt.interop import save_adapter
from tests.cli.command_line import X, listing, message_of, refuse, run
from tests.tiny_models import save_model

TABLES = {
    "bare.tsv": "sentence\na cat\na dog\n",
    "empty.txt": "\n \n",
    "names.tsv": "sentence\tlabel\na\tno\nb\tyes\n",
    "one.tsv": "sentence\tlabel\nthe cat sat\t0\nthe cat sat\t1\n",
    "one.txt": "the cat\n",
    "pairs.tsv": "sentence1\tsentence2\tlabel\nthe cat\ta dog\t1\na dog\ta cat\t0\n",
    "same.tsv": "sentence\tlabel\ncat\t1\ndog\t1\n",
}


@pytest.fixture
def odd_files(files):
    """The fixture `files`, with files that cannot be used."""
    for name, content in TABLES.items():
        (files / name).write_text(content)
    for name in ("folder.npy", "report.html"):
        (files / name).mkdir()
    (files / "loop.npy").symlink_to("loop.npy")
    np.save("one.npy", X[:1])
    save_adapter(Whitening().fit(X), "narrow")
    return files


COMPARE = "compare dev.tsv --model my-model "
FIT = "fit --out a --model my-model "
FIT_X = "fit whitening --out a --on X.npy "
TEACHER = "fit teacher-readout --out a --model my-model --teacher my-base --on "
TRAIN = "finetune --model my-model --train train.tsv --out a/b/c "
WRONG_USAGE = [
    ("needs texts", "audit my-model"),
    ("texts.tsv", "audit X.npy texts.tsv"),
    ("--label", "audit X.npy --label kind"),
    ("--layers", "audit X.npy --layers"),
    ("--layers", "audit my-model texts.tsv --layers --label label"),
    ("--separately", "audit X.npy --separately"),
    ("--separately", "audit my-model texts.tsv --separately --label label"),
    ("--separately", "audit my-model texts.tsv --separately"),
    ("--test", COMPARE + "--encoder-saw"),
    ("did you mean", COMPARE + "--adapters whitenin"),
    ("teacher-readout", COMPARE + "--adapters teacher-readout"),
    ("cannot be combined", COMPARE + "--adapters fast --adapters whitening"),
    (r"\.html", "report dev.tsv --model my-model --out report.html"),
    ("--model", "export narrow --out m"),
    ("--pooling", "export my-adapter --pooling sum --out m"),
    ("--penalty 'entropy'.*istar, cosreg", TRAIN + "--penalty entropy"),
    ("--recipe '2' is not a recipe; choose from topo", TRAIN + "--recipe 2"),
    ("bars", TRAIN + "--penalty istar --set bars=all"),
    ("lam", TRAIN + "--set lam=-1"),
    ("name=value", TRAIN + "--set epochs"),
    ("--where 'heads' .*head_input", TRAIN + "--penalty istar --where heads"),
    ("--where 1.5", TRAIN + "--penalty cosreg --where 1.5"),
    ("'Whitening' is not .*choose from.*'whitening'", "fit Whitening --out a --on X.npy"),
    ("names head, .*method", FIT_X + "--set lam=1"),
    ("'method'", FIT_X + "--set method=ica"),
    ("--labels", FIT_X + "--label y"),
    ("matrix", FIT_X + "--separately"),
    ("labels.*--set head=None", "fit istar --out a --on X.npy"),
    ("labels.*--model", "fit logit-preserving-whitening --out a --on X.npy"),
    ("--model", "fit whitening --out a --on texts.tsv"),
    ("--label", "fit whitening --out a --on texts.tsv --labels y.npy"),
    ("two columns", FIT + "whitening --on texts.tsv --separately"),
    ("labels are those of pairs", FIT + "istar --on pairs.tsv --separately"),
    ("--on", FIT + "whitening --on a.tsv b.tsv"),
    ("--teacher is for teacher-readout", FIT + "whitening --on texts.tsv --teacher my-base"),
    ("--teacher", FIT + "teacher-readout --on texts.tsv"),
    ("--model", "fit teacher-readout --out a --teacher my-base --on texts.tsv"),
    ("'X.npy' is a matrix", TEACHER + "X.npy"),
    ("'space'", TEACHER + "texts.tsv --set space=x"),
    ("--separately", TEACHER + "pairs.tsv texts.tsv"),
    (r"\.npy, \.csv or \.parquet", "transform narrow X.npy out.tsv"),
    ("input file", "transform narrow X.npy X.npy --overwrite"),
    ("pass --model", "transform narrow texts.tsv out.npy"),
]
FAILURES = [
    ("absent", "audit absent texts.tsv"),
    ("at least 2", "audit my-model one.txt"),
    ("at least 2", "audit one.npy"),
    ("no column 'label'", "compare bare.tsv --model my-model"),
    ("absent", "report absent.tsv --model my-model --out new/report.html"),
    ("sentence1", COMPARE + "--pairs train.tsv"),
    ("'no'", COMPARE + "--foreign no"),  # before texts are encoded
    ("absent", "export absent --out m"),
    ("n_features_in_=5", "export narrow --model my-model --out m"),
    ("n_features_in_=5", "merge narrow my-model m"),
    ("config.json", "merge my-adapter . m"),
    ("zeta=2 must lie in", TRAIN + "--penalty istar --set zeta=2"),
    ("hidden states 0 .*, not 9", TRAIN + "--penalty cosreg --where 9"),
    ("became nan; lower lr", TRAIN + "--set lr=1e30"),
    ("label='mark'", TRAIN + "--label mark"),
    ("none.tsv", TRAIN + "--dev none.tsv"),
    ("names.tsv has the label 'no'", TRAIN + "--dev names.tsv"),
    ("bare.tsv has no column 'label'.*--label", TRAIN + "--dev bare.tsv"),
    ("only one distinct text", TRAIN + "--dev one.tsv"),
    ("--out='my-model' exists", TRAIN + "--out my-model"),
    ("one class", "finetune --model my-model --train same.tsv --out a"),
    ("'f9'", "fit whitening --out a --on X.parquet --label f9"),
    ("one.npy holds 1 row", "fit whitening --out a --on one.npy"),
    ("one.txt holds 1 row", FIT + "whitening --on one.txt"),
    ("not empty", "fit whitening --out my-adapter --on X.npy"),
    ("empty.txt holds no text", TEACHER + "texts.tsv empty.txt"),
    ("config.json is missing", "transform . X.npy out.npy"),
    ("'absent' is not a folder", "transform narrow X.npy absent/out.npy"),
    ("is a folder", "transform narrow X.npy folder.npy"),
]


@pytest.mark.parametrize(("word", "line"), WRONG_USAGE)
def test_wrong_usage_has_status_2(word, line, odd_files):
    refuse(word, *shlex.split(line), status=2)


@pytest.mark.parametrize(("word", "line"), FAILURES)
def test_failures_have_status_1(word, line, odd_files):
    refuse(word, *shlex.split(line), status=1)


@pytest.mark.parametrize(("option", "known"), [("penalty", PENALTIES), ("recipe", RECIPES)])
def test_what_can_be_chosen_is_said_before_what_is_missing(option, known):
    near = next(iter(known))
    refuse(f"did you mean {near!r}?", "finetune", f"--{option}", near[:-1], status=2)


def failure(*arguments):
    """The line in which a command fails, without new files; None if it succeeds."""
    before = listing()
    completed = run(*arguments)
    if completed.code in (None, 0):
        return None
    assert listing() == before
    if completed.code == 2 and "Usage: " in completed.stderr:  # by the parser of the arguments
        return completed.stderr
    assert 30 < len(message_of(completed)) < 1200
    return message_of(completed)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text):
    """A .npy file with a header of one's own and no data."""
    padded = text.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


class Bomb:
    def __reduce__(self):
        return (open, ("unpickled", "w"))


MATRICES = {
    "a pickle": npy(np.array([[Bomb()]], dtype=object), allow_pickle=True),
    "terabytes": header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**9, 10**3)}"),
    "code as header": header("__import__('pathlib').Path('unpickled').touch()"),
    "cut": npy(X)[:-9],
    "no rows": npy(X[:0]),
    "constant": npy(np.ones((9, 5))),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_that_are_none(name, odd_files):
    (odd_files / "bad.npy").write_bytes(MATRICES[name])
    assert failure("audit", "bad.npy")
    assert failure("fit", "whitening", "--on", "bad.npy", "--out", "out")
    failure("transform", "narrow", "bad.npy", "out.npy")
    failure("fit", "whitening", "--on", "X.npy", "--labels", "bad.npy", "--out", "labelled")
    assert not (odd_files / "unpickled").exists()


def test_models_that_are_none(odd_files):
    save_model(odd_files / "bad")
    for data in (b"[]", b"\xff\xfe"):
        (odd_files / "bad" / "config.json").write_bytes(data)
        for line in (
            "audit bad texts.tsv",
            "merge my-adapter bad out",
            "finetune --model bad --train texts.tsv --out out",
            "fit whitening --on texts.tsv --model bad --out out",
        ):
            refuse("config.json", *line.split())


@pytest.mark.parametrize("path", ["''", "~nobody-here/x.npy", "loop.npy", "folder.npy"])
def test_paths_that_cannot_be(path, odd_files):
    for line in (
        f"audit {path}",
        f"audit {path} texts.tsv",
        f"fit whitening --on {path} --out out",
        f"fit whitening --on X.npy --labels {path} --out out",
        f"transform narrow {path} out.npy",
        f"transform {path} X.npy out.npy",
        f"merge {path} my-model out",
        f"finetune --model my-model --train {path} --out out",
        f"demo --train {path} --dev {path} --out out/a",
    ):
        assert failure(*shlex.split(line)) is not None, line


@pytest.mark.parametrize("out", ["folder.npy", "X.npy", "X.npy/a", "."])
def test_outputs_that_cannot_be(out, odd_files):
    (odd_files / "folder.npy" / "kept").touch()
    assert failure("fit", "whitening", "--on", "X.npy", "--out", out) is not None
    assert failure("merge", "my-adapter", "my-model", out) is not None
