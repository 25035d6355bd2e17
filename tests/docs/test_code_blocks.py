"""Every code block of the site and of the README runs, or is a command with existing options."""

import dataclasses
import doctest
import importlib.util
import itertools
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import typer

from isoadapt import datasets
from isoadapt.cli import app
from isoadapt.datasets import make_acceptability
from tests.cli.command_line import succeed
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model, save_pair

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.md")
    if path.relative_to(ROOT / "docs").parts[0] not in {"_build", "api", "gallery"}
)
_FENCED = re.compile(r"^```(\S+)\n(.*?)^```", re.M | re.S)
COMMANDS = typer.main.get_command(app).commands
SLOW = ["docs/guide/serving.md"]  # exports to ONNX
NOT_INSTALLED = ["docs/guide/recipes.md"]  # run by hand, with the versions that the page names
CHEAP = {"audit", "check", "compare", "duplicates", "export", "fit", "search", "transform"}
N_TRAIN, N_DEV = 96, 60


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path):
    """Language and code of each block of a page."""
    return _FENCED.findall(path.read_text("utf-8"))


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
    save_pair(make_model(num_labels=2).bert, make_tokenizer(), tmp_path / "my-base")
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
        if of_language(page, "python") and name(page) not in NOT_INSTALLED
    ],
    ids=name,
)
def test_python_blocks_run(page, folder):
    corpus = small_corpus()
    names = {"__name__": "page", "texts": corpus.train_texts, "y": corpus.train_labels}
    names |= {"new_texts": corpus.dev_texts, "new_y": corpus.dev_labels}
    for code in of_language(page, "python"):
        exec(compile(code, name(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if of_language(page, "pycon")], ids=name)
def test_doctests_hold(page):
    text = "\n".join(of_language(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(text, {}, name(page), str(page), 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


@pytest.mark.parametrize("page", [README, *PAGES], ids=name)
def test_all_blocks_are_known_and_shell_commands_exist(page):
    languages = {"python", "pycon", "sh", "text"}
    assert {language for language, _ in blocks(page)} - {"{toctree}"} <= languages
    assert 2 * len(blocks(page)) == len(re.findall("^```", page.read_text("utf-8"), re.M))
    for code in of_language(page, "python"):
        compile(code, name(page), "exec")
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
        elif program not in {"git", "cd"}:
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
    pairs = [f"{a}\t{b}\t{score}" for score, ((a, _), (b, _)) in enumerate(itertools.pairwise(dev))]
    (folder / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *pairs]))
    (folder / "my-pairs.tsv").write_text("\n".join(["left\tright\tscore", *pairs]))
    (folder / "queries.tsv").write_text("\n".join(["query\tdocument\tnumber", *pairs]))
    for line in shell_lines(ROOT / "docs" / "guide" / "command_line.md"):
        _, command, *options = shlex.split(line, comments=True)
        if command in CHEAP:
            succeed(command, *options)
    for written in ("my-merged-model", "my-exported-model"):
        assert (folder / written / "model.safetensors").is_file()


def anchors(path):
    """The anchors that a repository host gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)", path.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=name)
def test_a_repository_host_renders_the_page(page):
    text = page.read_text("utf-8")
    assert not re.search(r":\w+:`|\{\w+\}`|^\.\. |^:::", text, re.M)  # roles and directives
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), anchor
