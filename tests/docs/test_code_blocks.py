"""Every code block of the site and of the README runs, or is a command with existing options."""

import dataclasses
import doctest
import importlib.util
import itertools
import re
import shlex
import shutil
import textwrap
import tomllib
from pathlib import Path

import pytest
import typer

from isoadapt import datasets
from isoadapt.cli import app
from isoadapt.datasets import make_acceptability
from tests.cli.command_line import succeed
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.rst")
    if path.relative_to(ROOT / "docs").parts[0] not in {"_build", "api", "gallery", "generated"}
)
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
_DIRECTIVE = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:[ ]{3}.*\n|\n)+)", re.M)
COMMANDS = typer.main.get_command(app).commands
SLOW = ["docs/guide/serving.rst"]  # exports to ONNX
CHEAP = {"audit", "check", "compare", "export", "fit", "transform"}
N_TRAIN, N_DEV = 96, 60


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path):
    """Language and code of each block of a page."""
    text = path.read_text("utf-8")
    found = (_FENCED if path.suffix == ".md" else _DIRECTIVE).findall(text + "\n")
    return [(language, textwrap.dedent(code)) for language, code in found]


def of_language(path, language):
    return [code for each, code in blocks(path) if each == language]


def shell_lines(path):
    lines = "".join(of_language(path, "sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def small_corpus(random_state=0):
    """Labelled texts in words that the tiny tokenizer knows, so that no two are encoded alike."""
    corpus = make_acceptability(N_TRAIN, N_DEV, random_state)
    texts = [" ".join(words) for words in itertools.permutations(WORDS[:6], 4)][: N_TRAIN + N_DEV]
    return dataclasses.replace(corpus, train_texts=texts[:N_TRAIN], dev_texts=texts[N_TRAIN:])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "checkpoint", num_labels=2)


@pytest.fixture
def folder(checkpoint, tmp_path, monkeypatch):
    """A working folder with what `make demo` leaves, and a corpus that is quickly encoded."""
    for place in ("isoadapt-demo/checkpoint", "my-model"):
        shutil.copytree(checkpoint, tmp_path / place)
    make_model(num_labels=2).bert.save_pretrained(tmp_path / "my-base")
    make_tokenizer().save_pretrained(tmp_path / "my-base")
    monkeypatch.setattr(datasets, "make_acceptability", small_corpus)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# torch warns of its data loader's default, which concerns machines without a GPU only.
@pytest.mark.usefixtures("fixed_penalty")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (name(page) in SLOW))
        for page in [README, *PAGES]
        if of_language(page, "python")
    ],
    ids=name,
)
def test_python_blocks_run(page, folder):
    corpus = small_corpus()
    names = {"__name__": "page", "texts": corpus.train_texts, "y": corpus.train_labels}
    for code in of_language(page, "python"):
        exec(compile(code, name(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text()], ids=name)
def test_doctests_hold(page):
    text = page.read_text("utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, name(page), str(page), 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


@pytest.mark.parametrize("page", [README, *PAGES], ids=name)
def test_all_blocks_are_known_and_shell_commands_exist(page):
    text = page.read_text("utf-8")
    assert {language for language, _ in blocks(page)} <= {"python", "sh", "text"}
    assert len(blocks(page)) == len(re.findall(r"^(?:```\w+|\.\. code-block::)", text, re.M))
    for line in shell_lines(page):
        program, *arguments = shlex.split(line, comments=True)
        if program == "isoadapt":
            command, *options = arguments
            COMMANDS[command].make_context(command, options)  # raises on what it does not know
        elif program == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.M), line
        elif program == "python":
            flag, module, *_ = [*arguments, ""]
            found = importlib.util.find_spec(module) if flag == "-m" else (ROOT / flag).is_file()
            assert found, line
        else:
            assert (program, arguments[0]) == ("pip", "install")
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            extras = re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", line)))
            assert set(extras) <= known["optional-dependencies"].keys()


def test_the_cheap_commands_run(folder):
    corpus = small_corpus()
    train = zip(corpus.train_texts, corpus.train_labels, strict=True)
    dev = [*zip(corpus.dev_texts, corpus.dev_labels, strict=True)]
    for file, rows in (("train", train), ("dev", dev), ("texts", dev)):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows), ""]
        (folder / f"{file}.tsv").write_text("\n".join(lines))
    for line in shell_lines(ROOT / "docs" / "guide" / "command_line.rst"):
        _, command, *options = shlex.split(line, comments=True)
        if command in CHEAP:
            succeed(command, *options)
    for written in ("my-merged-model", "my-exported-model"):
        assert (folder / written / "model.safetensors").is_file()


def test_local_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text("utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert local
    assert all((ROOT / link).exists() for link in local)
