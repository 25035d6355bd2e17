"""What every command refuses: in one line, with its exit status, and without leaving a file."""

import shlex

import numpy as np
import pytest

from isoadapt import Whitening
from isoadapt.interop import save_adapter
from tests.cli.command_line import X, refuse

CONTENTS = {
    "bad/config.json": "[]",
    "bare.tsv": "sentence\na cat\na dog\n",
    "empty.txt": "\n \n",
    "latin.txt": "caf\xe9\n",
    "names.tsv": "sentence\tlabel\na\tno\nb\tyes\n",
    "one.tsv": "sentence\tlabel\nthe cat sat\t0\nthe cat sat\t1\n",
    "pairs.tsv": "sentence1\tsentence2\tlabel\nthe cat\ta dog\t1\na dog\ta cat\t0\n",
}


@pytest.fixture(scope="module")
def odd_files(place, tmp_path_factory):
    """A folder with links to all of `place`, and with files that cannot be used."""
    folder = tmp_path_factory.mktemp("odd")
    for path in place.iterdir():
        if path.name not in CONTENTS:  # which would be written through the link
            (folder / path.name).symlink_to(path)
    (folder / "bad").mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_text(content, "latin-1")
    for name in ("folder.npy", "report.html"):
        (folder / name / "kept").mkdir(parents=True)
    for name, matrix in {"one": X[:1], "constant": np.ones((9, 5)), "cut": X}.items():
        np.save(folder / f"{name}.npy", matrix)
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:-9])
    save_adapter(Whitening().fit(X), folder / "narrow")
    return folder


COMPARE = "compare dev.tsv --model my-model "
FIT = "fit --out a --model my-model "
TEACHER = "fit teacher-readout --out a --model my-model --teacher my-base --on "
TRAIN = "finetune --model my-model --train train.tsv --out a/b/c "
WRONG_USAGE = [
    ("comes before its texts: isoadapt audit my-model texts.tsv", "audit my-model"),
    ("'texts.tsv' is read as a checkpoint, which comes before", "audit texts.tsv my-model"),
    ("--label", "audit X.npy --label kind"),
    ("--layers", "audit X.npy --layers"),
    ("two columns", "audit my-model texts.tsv --separately"),
    ("--separately", "audit my-model pairs.tsv --separately --label label"),
    ("--test", COMPARE + "--encoder-saw"),
    ("did you mean", COMPARE + "--adapters whitenin"),
    ("--pairs: give it", COMPARE + "--pairs-score kind"),
    ("or --queries alone", COMPARE + "--queries dev.tsv --relevant dev.tsv"),
    ("name it with --teacher", COMPARE + "--adapters teacher-readout"),
    (r"\.html", COMPARE + "--html report.html"),
    ("--model", "export narrow --out m"),
    ("name=value", TRAIN + "--set epochs"),
    ("--set lam=1 --set epochs=1$", TRAIN + "--set lam=1 epochs=1"),
    ("--set a=1 --set b=2$", "fit istar --on X.npy --set a=1 b=2 --out a"),
    ("'Whitening' is not .*choose from.*'whitening'", "fit Whitening --out a --on X.npy"),
    ("labels.*--head None", "fit istar --out a --on X.npy"),
    ("labels.*--model", "fit logit-preserving-whitening --out a --on X.npy"),
    ("--model", "fit whitening --out a --on texts.tsv"),
    ("--on", FIT + "whitening --on a.tsv b.tsv"),
    ("--teacher is for teacher-readout", FIT + "whitening --on texts.tsv --teacher my-base"),
    ("--teacher", FIT + "teacher-readout --on texts.tsv"),
    ("or two matrices", TEACHER + "X.npy"),
    ("or two matrices", "fit teacher-readout --out a --on X.npy X.npy --teacher X.npy"),
    ("or two matrices", TEACHER.replace("my-base", "X.npy") + "texts.tsv"),
    (r"\.npy, \.csv or \.parquet", "transform narrow X.npy out.tsv"),
    ("input file", "transform narrow X.npy X.npy --overwrite"),
    ("pass --model", "transform narrow texts.tsv out.npy"),
    ("omit them", TEACHER + "texts.tsv --label label"),
    ("omit them", "fit teacher-readout --out a --on X.npy --teacher X.npy --labels y.npy"),
    ("{0: -1} must be .* 0, 1, 2", TRAIN + "--class-weight '{0: -1}'"),
    ("--train and --dev", "demo --train absent.tsv"),
    ("did you mean", TRAIN + "--penalty ista"),
    ("isoadapt: --teacher-layers must be .*'x'", TEACHER + "texts.tsv --teacher-layers=x"),
    ("isoadapt: --epochs must be ", TRAIN + "--epochs 0.5"),
    ("'random_state' parameter", TRAIN + "--set random_state=-1"),
    ("isoadapt: --false-pairs must", "duplicates texts.tsv --model my-model --false-pairs 0"),
    ("--merge", "export narrow --out m --merge --normalize"),
]
FAILURES = [
    (r"X\[2\] is a str", TEACHER + "pairs.tsv texts.tsv"),
    ("absent", "audit absent texts.tsv"),
    ("byte 0xE9.*--encoding", "audit my-model latin.txt"),
    ("latin.txt cannot be read.*cp-0", "audit my-model latin.txt --encoding cp-0"),
    ("at least 4", "audit one.npy"),
    ("cut.npy", "audit cut.npy"),
    ("vary|constant|variance", "audit constant.npy"),
    ("no column 'label'", "compare bare.tsv --model my-model"),
    ("pairs.tsv.*--pairs-text", COMPARE + "--pairs pairs.tsv --pairs-text left,right"),
    ("'query', 'document' is not", COMPARE + "--queries pairs.tsv"),
    ("absent", "compare absent.tsv --model my-model --html new/report.html"),
    ("names.tsv has the label 'no'", TRAIN + "--dev names.tsv"),
    ("bare.tsv has no column 'label'.*--label", TRAIN + "--dev bare.tsv"),
    ("only one distinct text", TRAIN + "--dev one.tsv"),
    ("--out='my-model' exists", TRAIN + "--out my-model"),
    ("'f9'", "fit whitening --out a --on X.parquet --label f9"),
    ("not empty", "fit whitening --out my-adapter --on X.npy"),
    ("empty.txt holds no rows", TEACHER + "texts.tsv empty.txt"),
    ("config.json", "audit bad texts.tsv"),
    ("adapter.skops is missing, a link or a folder", "transform . X.npy out.npy"),
    ("'absent' is not a folder", "transform narrow X.npy absent/out.npy"),
    ("X.npy", "fit whitening --on X.npy --out X.npy/a"),
    ("folder.npy", "audit folder.npy"),
    ("2 different rows.*50", "duplicates pairs.tsv --model my-model"),
    ("'absent' does not exist", "duplicates texts.tsv --model my-model --out absent/a.tsv"),
    ("every text of", "demo --train train.tsv --dev train.tsv --checkpoint m --out a"),
]


@pytest.mark.parametrize(
    ("status", "word", "line"),
    [*((2, *each) for each in WRONG_USAGE), *((1, *each) for each in FAILURES)],
)
def test_one_line_says_why(status, word, line, odd_files, monkeypatch):
    if line.startswith("export"):
        pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(odd_files)
    refuse(word, *shlex.split(line), status=status)
