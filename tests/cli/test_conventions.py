"""Every command follows the same conventions: streams, --json, --quiet, exit status, example."""

import json
import re
import shlex
import shutil

import pytest
import transformers
import typer
from typer.testing import CliRunner

from isoadapt import cli
from isoadapt.adapters._registry import VARIANTS
from isoadapt.cli import _compare, _demo
from isoadapt.cli._options import Console
from isoadapt.model_selection._compare._compare_adapters import INTERRUPTED
from tests.cli.command_line import message_of, run
from tests.tiny_models import save_model

pytestmark = pytest.mark.usefixtures("fixed_penalty")
COMMANDS = dict(typer.main.get_command(cli.app).commands)
KEYS = {
    "audit": {"isoscore", "truncation", "vectors", "references", "next_steps"},
    "compare": {"protocol", "rows", "verdict", "notes"},
    "report": {"protocol", "rows", "verdict", "notes"},
    "finetune": {"checkpoint", "dev"},
    "fit": {"adapter", "method", "rows", "evaluated_on", "before", "after"},
    "transform": {"file", "n_samples", "n_features", "dtype"},
    "merge": {"checkpoint", "head"},
    "export": {"model", "classifies"},
    "check": {"vectors_version", "as_exported", "loaders"},
    "demo": {"comparison", "similarity", "spectra", "pipeline"},
}
EXTRA = {  # makes the example cheap, or lets it run twice
    "compare": ["--adapters", "whitening"],
    "report": ["--adapters", "whitening"],
    "finetune": ["--set", "epochs=1"],
    "fit": ["--overwrite"],
    "transform": ["--overwrite"],
}
# Before transformers had a hook for progress bars, they could only be hidden for the whole process.
BARS_CAN_BE_HIDDEN = hasattr(transformers.utils.logging, "set_tqdm_hook")
FEW = ("IsotropyLayer, minibatch", "LogitPreservingWhitening")  # adapters of the demo


def example_of(command):
    """The example of the command's help, as printed on a terminal of 80 columns."""
    output = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    [line] = re.findall(r"Example:\s+(isoadapt .*?)\s*\n", output)
    return shlex.split(line)[1:]


@pytest.fixture(scope="module")
def place(tables, checkpoint, tmp_path_factory):
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("train.tsv", "dev.tsv"):
        shutil.copy(tables / name, folder)
    shutil.copy(tables / "dev.tsv", folder / "texts.tsv")
    shutil.copytree(checkpoint, folder / "my-model")
    save_model(folder / "my-base")
    fit = ["fit", "whitening", "--on", "train.tsv", "--model", "my-model", "--out", "my-adapter"]
    assert run_in(folder, *fit).code in (None, 0)
    return folder


def run_in(folder, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return run(*arguments)


def prepared(place, command):
    """Return the command line of an example; before that of check, run that of export once."""
    if command in ("export", "check"):
        pytest.importorskip("sentence_transformers")
    if command == "check" and not (place / "my-exported-model").exists():
        assert run_in(place, *prepared(place, "export"), "--quiet").code in (None, 0)
    return [*example_of(command), *EXTRA.get(command, [])]


def test_the_sweep_knows_every_command():
    assert KEYS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", KEYS)
class TestEveryCommand:
    def test_the_example_of_the_help_parses(self, command):
        name, *arguments = example_of(command)
        assert name == command
        COMMANDS[name].make_context(name, arguments)  # raises on what it does not know

    def test_the_help_begins_with_what_one_gets_and_an_example(self, command):
        output = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"}).stdout
        sentence = re.split(r"\n\s*\n", COMMANDS[command].help.strip())[0]
        places = [" ".join(output.split()).find(part) for part in (sentence, "Example:", "─ ")]
        assert places == sorted(places)
        assert places[0] > 0

    def test_the_options_are_the_shared_ones(self, command):
        helps = {
            option.help
            for option in COMMANDS[command].params
            if {"--json", "--quiet"} & {*option.opts}
        }
        assert helps == {
            "Print the result as JSON.",
            "Print the result and errors only, no progress or notes.",
        }

    @pytest.mark.filterwarnings("ignore:training ended at max_epochs")
    def test_the_example_runs_as_json_and_quietly(self, command, place, monkeypatch, capfd):
        few = [each for each in VARIANTS if each.name in FEW]
        monkeypatch.setattr(_demo, "installed_variants", lambda: few)
        completed = run_in(place, *prepared(place, command), "--json", "--quiet")
        assert completed.code in (None, 0), completed
        assert json.loads(completed.stdout).keys() >= KEYS[command]
        if BARS_CAN_BE_HIDDEN:
            assert completed.stderr == ""
            assert capfd.readouterr() == ("", "")  # nothing passes by the streams of Python

    def test_an_unknown_option_is_wrong_usage(self, command):
        completed = run(command, "--nonsense")
        assert (completed.code, completed.stdout) == (2, "")
        assert "Traceback" not in completed.stderr

    def test_an_interrupt_is_130(self, command, place, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        arguments = prepared(place, command)
        monkeypatch.setattr(Console, "notes", interrupted)
        completed = run_in(place, *arguments)
        assert completed.code == 130
        assert completed.stdout == ""
        assert "Traceback" not in completed.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "my-model"],
        ["audit", "X.npy", "--layers"],
        ["audit", "X.npy", "texts.tsv"],
        ["audit", "X.npy", "--label", "kind"],
        ["audit", "my-model", "texts.tsv", "--layers", "--label", "label"],
        ["demo", "--train", "train.tsv"],
        ["finetune", "--model", "my-base", "--train", "train.tsv", "--penalty", "nonsense"],
        ["finetune", "--model", "my-base", "--train", "train.tsv", "--recipe", "nonsense"],
        ["finetune", "--model", "my-base", "--train", "train.tsv", "--set", "lam=1"],
        ["finetune", "--model", "my-base", "--train", "train.tsv", "--set", "nonsense=1"],
        ["fit", "nonsense", "--on", "train.tsv", "--model", "my-model", "--out", "new"],
        ["fit", "whitening", "--on", "train.tsv", "--out", "new"],
        ["fit", "whitening", "--on", "X.npy", "--out", "new", "--set", "strength=many"],
        ["fit", "whitening", "--on", "X.npy", "--out", "new", "--label", "label"],
        ["fit", "whitening", "--on", "X.npy", "--out", "new", "--separately"],
        ["transform", "my-adapter", "dev.tsv", "adapted.tsv"],
        ["report", "train.tsv", "--model", "my-model", "--out", "dev.tsv"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_2(command, place):
    before = {path.name for path in place.iterdir()}
    completed = run_in(place, *command)
    assert (completed.code, completed.stdout) == (2, "")
    message_of(completed)
    assert {path.name for path in place.iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "absent.npy"],
        ["audit", "absent", "texts.tsv"],
        ["compare", "absent.tsv", "--model", "my-model"],
        ["fit", "whitening", "--on", "train.tsv", "--model", "my-model", "--out", "my-adapter"],
        ["transform", "absent", "dev.tsv", "adapted.npy"],
        ["transform", "my-adapter", "X.npy", "X.parquet"],
        ["merge", "absent", "my-model", "new"],
        ["export", "absent", "--model", "my-model", "--out", "new"],
    ],
)
def test_failures_are_one_line_and_exit_status_1(command, place):
    completed = run_in(place, *command, "--quiet", "--json")
    assert isinstance(completed.code, str)  # the interpreter prints it and exits with 1
    message_of(completed)
    assert completed.stdout == ""


def test_a_comparison_that_was_interrupted_shows_what_is_done_and_exits_with_130(
    place, monkeypatch
):
    compare = _compare.compare_adapters

    def interrupted(*arguments, **options):
        comparison = compare(*arguments, **options)
        comparison.notes.append(f"{INTERRUPTED} before these were done: IsoBN")
        return comparison

    monkeypatch.setattr(_compare, "compare_adapters", interrupted)
    arguments = ["compare", "dev.tsv", "--model", "my-model", "--adapters", "whitening"]
    completed = run_in(place, *arguments, "--json")
    assert completed.code == 130
    rows = json.loads(completed.stdout)["rows"]
    assert {row["adapter"] for row in rows} > {"Whitening"}
    assert {row["use"] for row in rows} == {"classify", "neighbours"}
    assert "Encoding the 90 texts of dev.tsv ..." in completed.stderr
    assert "Note: encoder_saw=None: it is not known" in completed.stderr
