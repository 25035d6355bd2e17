"""The application: its commands, in the order of its help, and its entry point.

The code that runs a command is imported on use.
"""

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import isoadapt
from isoadapt._utils.files import ADAPTER, check_output_folder
from isoadapt._utils.messages import choices, reason
from isoadapt.adapters._registry import METHODS, NAMES
from isoadapt.cli import _compare_tables, _options as options
from isoadapt.cli._options import TABLE, Console, WrongUsage, check_exist
from isoadapt.cli._sources import (
    Columns,
    is_matrix,
    read_general,
    read_labelled,
    read_texts,
    read_to_audit,
    read_to_fit,
)
from isoadapt.finetune._penalties import PENALTIES

_EXPECTED = ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError, MemoryError
_WRONG_USAGE = WrongUsage.__name__, "InvalidParameterError"  # scikit-learn's, not imported yet

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _run(command: str, *given: Any) -> Any:
    """Run the code of a command, which is imported on use."""
    code = {"check": "export", "merge": "export", "search": "duplicates"}.get(command, command)
    return getattr(import_module(f"isoadapt.cli._{code}"), command)(*given)


@app.command()
def demo(
    train: options.Table = None,
    dev: options.Table = None,
    text: options.Text = None,
    encoding: options.Encoding = None,
    label: options.Label = None,
    checkpoint: Annotated[
        str | None, Option(help="Fine-tuned checkpoint. Default: a MiniLM is fine-tuned.")
    ] = None,
    out: Annotated[Path, Option(help="Output folder.")] = Path("isoadapt-demo"),
    overwrite: options.Overwrite = False,
    every: Annotated[
        bool, Option("--all", help="Fit every adapter, also those that take longer.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show similarity and search before and after a repair, and a table of adapters.

    Without --checkpoint, a MiniLM is fine-tuned first; without tables, on generated sentences.

    Example:

    isoadapt demo --train train.tsv --dev dev.tsv --checkpoint my-model --out out
    """
    if (train is None) != (dev is None):
        raise WrongUsage("--train and --dev must be given together")
    if train is None and (text or label):
        raise WrongUsage("--text and --label name columns of tables: give --train and --dev too")
    check_exist([train, dev], [checkpoint])
    tables = [read_labelled(path, Columns(text, label, encoding)) for path in (train, dev) if path]
    _run("demo", tables, checkpoint, out, overwrite, every, Console(as_json, quiet))


@app.command()
def audit(
    source: Annotated[
        str, Argument(help="Checkpoint (folder or name) or matrix (.npy, .parquet).")
    ],
    texts: Annotated[
        Path | None, Argument(help="Table of texts to embed with a checkpoint, or .txt.")
    ] = None,
    text: options.Text = None,
    encoding: options.Encoding = None,
    separately: options.Separately = False,
    label: Annotated[
        str | None, Option(help="Column of labels. Each class is then reported separately too.")
    ] = None,
    max_length: options.MaxLength = None,
    vectors: Annotated[
        str,
        Option(
            help="auto: the input of a classifier, or the vectors of an encoder. exported: the "
            "repaired vectors in a folder that isoadapt export wrote. Or a pooling: cls, mean, max."
        ),
    ] = "auto",
    layers: Annotated[
        bool, Option("--layers", help="Report on the tokens of each layer too.")
    ] = False,
    full: Annotated[bool, Option("--all", help="Print all figures.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Say how collapsed embeddings are, of texts or of a matrix, and what to do.

    Example:

    isoadapt audit my-model texts.tsv
    """
    if is_matrix(source) and (texts is not None or layers or vectors != "auto"):
        given = "--layers" if layers else "--vectors" if texts is None else f"texts={str(texts)!r}"
        raise WrongUsage(f"{given} needs a checkpoint, but {source!r} is a matrix")
    rows = read_to_audit(source, texts, Columns(text, label, encoding, separately))
    _run("audit", rows, source, vectors, max_length, layers, full, Console(as_json, quiet))


@app.command()
def compare(
    table: Annotated[Path, Argument(help=TABLE)],
    model: Annotated[str, Option(help="Checkpoint that embeds the texts.")],
    test: Annotated[
        Path | None,
        Option(help="Table that the encoder has not seen, to judge on. Default: cross-validation."),
    ] = None,
    encoder_saw: Annotated[
        bool | None,
        Option("--encoder-saw/--encoder-unseen", help="Whether the encoder was trained on TABLE."),
    ] = None,
    pairs: Annotated[
        Path | None,
        Option(help="Table of pairs (sentence1, sentence2) and scores (label), for similarity."),
    ] = None,
    pairs_text: Annotated[
        str | None, Option(help="Columns of texts of --pairs as A,B, if they differ.")
    ] = None,
    pairs_score: Annotated[
        str | None, Option(help="Column of scores of --pairs, if it differs.")
    ] = None,
    queries: Annotated[
        Path | None,
        Option(
            help="Table of queries, to judge search too, with --documents and --relevant; or "
            "alone, with the columns query and document: a text, and one that it should find."
        ),
    ] = None,
    documents: Annotated[Path | None, Option(help="Table of the documents to search.")] = None,
    relevant: Annotated[
        Path | None,
        Option(
            help="Table of the columns query and document, which name rows of the two by their "
            "columns id or, without one, by their numbers from 1. Queries without a document are "
            "left out."
        ),
    ] = None,
    foreign: Annotated[
        Path | None, Option(help="Table of texts of another kind, to judge outliers too.")
    ] = None,
    adapters: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="fast: those in closed form or with an exact solver. all: also those trained by "
            "mini-batches, which takes longer. Or a name, and --adapters again for each further "
            f"one: {', '.join(METHODS)}; with --teacher, teacher-readout. Default: fast.",
        ),
    ] = None,
    teacher: options.Teacher = None,
    head: options.Head = "auto",
    class_names: options.ClassNames = None,
    text: options.Text = None,
    encoding: options.Encoding = None,
    label: options.Label = None,
    max_length: options.MaxLength = None,
    jobs: Annotated[int | None, Option(help="Number of processes. Default: 1.")] = None,
    cache: Annotated[
        Path | None,
        Option(help="Folder that keeps finished fits, for the same command after an interrupt."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Output folder for comparison.json and the best adapter of each use."),
    ] = None,
    page: Annotated[
        Path | None, Option("--html", help="HTML file of the result and an audit. It is replaced.")
    ] = None,
    with_texts: Annotated[
        bool, Option("--with-texts", help="Show the texts as tooltips in the --html file.")
    ] = False,
    full: Annotated[
        bool, Option("--all", help="Print p-values, geometry, cost and further figures too.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Print which adapters are better or worse than none, on your task and for other uses.

    Example:

    isoadapt compare train.tsv --model my-model --test dev.tsv --pairs pairs.tsv
    """
    tables = {"test": test, "pairs": pairs, "foreign": foreign}
    tables |= {"queries": queries, "documents": documents, "relevant": relevant}
    given = {name: path for name, path in tables.items() if path is not None}
    columns, of_pairs = Columns(text, label, encoding), Columns(pairs_text, pairs_score, encoding)
    out, page = (path and path.expanduser() for path in (out, page))
    run = _compare_tables.Run(
        *(table, columns, given, of_pairs, model, max_length, teacher, head),
        *(options.read_class_names(class_names), adapters or [], encoder_saw, jobs, cache),
        *(out, page, with_texts, full, Console(as_json, quiet)),
    )
    _run("compare", _compare_tables.read(run), run)


@app.command(cls=options.ManyFilesCommand)
def finetune(
    model: Annotated[str, Option(help="Folder or name of the model to start from.")],
    train: Annotated[Path, Option(help=TABLE)],
    dev: Annotated[Path | None, Option(help="Table of the same form to evaluate on.")] = None,
    penalty: Annotated[
        str | None, Option(help=f"Penalty added to the task loss: {', '.join(PENALTIES)}.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter, and --set again for each further one. For the penalty: lam (its "
            "weight, 1 by default, .1 for anchor; with istar, positive values increase isotropy "
            "and negative values decrease it), balance (ema or cumulative), and parameters of the "
            "loss, such as zeta (istar) or bars (topological-entropy). For the training: epochs, "
            "lr, batch_size, warmup, weight_decay, class_weight, random_state, device.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        Option(
            help="Vectors penalised: head_input, mean, last, all, layers 1,6. Default: the paper's."
        ),
    ] = None,
    class_weight: Annotated[
        str | None, Option(help="Weights of classes in the loss: balanced, or {'a': 2, 'b': 1}.")
    ] = None,
    epochs: Annotated[str | None, Option(help="Number of passes over the texts.")] = None,
    batch_size: Annotated[str | None, Option(help="Texts of a step.")] = None,
    lr: Annotated[str | None, Option(help="Learning rate.")] = None,
    text: options.Text = None,
    encoding: options.Encoding = None,
    label: Annotated[
        str | None, Option(help="Column of labels, or several of 0 and 1 as A,B. Default: label.")
    ] = None,
    max_length: options.MaxLength = 128,
    out: Annotated[Path, Option(help="Output folder for the checkpoint.")] = Path(
        "isoadapt-finetuned"
    ),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Fine-tune and save a classifier, with or without a penalty, and evaluate it.

    Example:

    isoadapt finetune --model my-base --train train.tsv --penalty istar
    """
    if penalty is not None and penalty not in PENALTIES:
        raise WrongUsage(f"--penalty {penalty!r} is not a penalty; {choices(penalty, PENALTIES)}")
    check_exist([train, dev], [model])
    columns = Columns(text, label.split(",") if label else None, encoding)
    rows = read_labelled(train, columns)
    judged = None if dev is None else read_labelled(dev, columns)
    check_output_folder(out, overwrite, name="--out")
    given = {"where": where, "class_weight": class_weight}
    given |= {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    settings = [*(settings or []), *(f"{name}={each}" for name, each in given.items() if each)]
    rest = model, max_length, penalty, settings, out, overwrite, Console(as_json, quiet)
    _run("finetune", rows, judged, *rest)


@app.command(cls=options.ManyFilesCommand)
def fit(
    name: Annotated[str, Argument(help=f"Name of the adapter: {', '.join(NAMES)}.")],
    on: Annotated[
        list[Path],
        Option(
            metavar="FILE...",
            help="Texts (.tsv, .csv, .jsonl, .parquet, or .txt with one on each line) or matrix "
            "(.npy, .parquet). teacher-readout takes several files of texts, and no labels.",
        ),
    ],
    out: Annotated[Path, Option(help="Output folder for the adapter.")],
    model: Annotated[
        str | None, Option(help="Checkpoint that embeds the texts. Its head is the adapter's head.")
    ] = None,
    teacher: options.Teacher = None,
    teacher_layers: options.TeacherLayers = "auto",
    general: options.General = "auto",
    head: options.Head = "auto",
    class_names: options.ClassNames = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="A parameter; --set again for each other one."),
    ] = None,
    text: options.Text = None,
    encoding: options.Encoding = None,
    separately: options.Separately = False,
    label: options.Label = None,
    labels: Annotated[Path | None, Option(help="File with the labels of a .npy matrix.")] = None,
    max_length: options.MaxLength = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit an adapter to texts or to a matrix of embeddings, and save it in a folder.

    Example:

    isoadapt fit whitening --on train.tsv --model my-model --out my-adapter
    """
    if name not in NAMES:
        raise WrongUsage(f"{name!r} is not the name of an adapter; {choices(name, NAMES)}")
    if class_names and model is None:
        raise WrongUsage("--class-names needs --model, the checkpoint whose classes it names")
    columns = Columns(text, label, encoding, separately)
    rows = read_to_fit(name, on, columns, labels, model, teacher)
    check_output_folder(out, overwrite, content=ADAPTER, name="--out")
    console, encoder = Console(as_json, quiet), None
    pooling = "auto" if teacher is None else "readout"
    if model is not None:
        folder = Path(model).expanduser()
        path = str(folder.resolve()) if folder.is_dir() else model  # found from any folder
        of_texts: Any = {"pooling": pooling, "max_length": max_length, "verbose": console.verbose}
        encoder = isoadapt.TransformerEncoder(path, **of_texts)
    given = {
        "teacher": teacher,
        "teacher_layers": int(teacher_layers) if teacher_layers.isdecimal() else teacher_layers,
        "general": read_general(general),
        "class_names": options.read_class_names(class_names),
    }
    settings = [f"head={head}", *(settings or [])]
    _run("fit", name, rows, encoder, given, settings, out, overwrite, console)


@app.command()
def transform(
    folder: Annotated[Path, Argument(help="Folder of a saved adapter.")],
    source: Annotated[Path, Argument(help="Texts or matrix (.npy, .parquet).")],
    out: Annotated[Path, Argument(help="Output file (.npy, .csv, .parquet).")],
    model: Annotated[
        str | None, Option(help="Checkpoint that embeds the texts. Default: that of the fit.")
    ] = None,
    text: options.Text = None,
    encoding: options.Encoding = None,
    separately: options.Separately = False,
    label: options.Label = None,
    max_length: options.MaxLength = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write the vectors of texts, or a matrix of embeddings, transformed by a saved adapter.

    Example:

    isoadapt transform my-adapter dev.tsv adapted.npy
    """
    check_exist([folder, source], [model])
    options.check_matrix_file(out, source, overwrite)
    columns, console = Columns(text, label, encoding, separately), Console(as_json, quiet)
    _run("transform", folder, source, columns, model, max_length, out, console)


@app.command()
def export(
    folder: Annotated[Path, Argument(help="Folder of a saved adapter.")],
    out: Annotated[Path, Option(help="Output folder for the model.")],
    model: Annotated[
        Path | None, Option(help="Folder of the checkpoint. Default: that of the fit.")
    ] = None,
    pooling: Annotated[
        str,
        Option(
            help="Pooling of the vectors that the adapter was fitted to: head_input, cls, mean or "
            "max. auto is the pooling that the adapter records. If it records none, a note says "
            "which is assumed: head_input for a classifier."
        ),
    ] = "auto",
    normalize: Annotated[
        bool, Option("--normalize", help="Scale the vectors to unit length.")
    ] = False,
    onnx: Annotated[
        bool, Option("--onnx", help="Write one ONNX graph, model.onnx, and its tokenizer instead.")
    ] = False,
    merge: Annotated[
        bool, Option("--merge", help="Merge the adapter into the checkpoint's weights instead.")
    ] = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write adapter and checkpoint as one model: for sentence-transformers, ONNX or transformers.

    A readout of hidden layers gets one file of code, which sentence-transformers
    runs if it is trusted. --onnx writes one graph for ONNX Runtime. --merge writes
    a checkpoint like the given one, for adapters that change its predictions.

    Example:

    isoadapt export my-adapter --model my-model --out my-exported-model
    """
    check_exist([folder, model], [])
    if not overwrite and not onnx:  # a graph may be added to a folder
        check_output_folder(out, overwrite, name="--out")
    if merge and (onnx or normalize or pooling != "auto"):
        raise WrongUsage("--merge cannot be combined with --onnx, --normalize or --pooling")
    command, own = ("merge", ()) if merge else ("export", (pooling, normalize, onnx))
    _run(command, folder, model, out, *own, overwrite, Console(as_json, quiet))


@app.command()
def duplicates(
    table: Annotated[Path, Argument(help="Table of texts, or .txt.")],
    model: Annotated[str, Option(help="Checkpoint, or exported folder: its repaired vectors.")],
    false_pairs: Annotated[float, Option(help="Pairs of unrelated texts to expect.")] = 1.0,
    text: options.Text = None,
    encoding: options.Encoding = None,
    separately: options.Separately = False,
    max_length: options.MaxLength = None,
    out: Annotated[Path | None, Option(help="Output file (.tsv) of all pairs found.")] = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Print the pairs of texts that are more similar than unrelated texts are.

    Example:

    isoadapt duplicates texts.tsv --model my-model
    """
    check_exist([table, out and out.parent], [model])
    if out is not None:
        options.check_file(out.expanduser(), overwrite)
    rows = read_texts([table], Columns(text, None, encoding, separately)).rows
    _run("duplicates", rows, model, max_length, false_pairs, out, Console(as_json, quiet))


@app.command()
def search(
    table: Annotated[Path, Argument(help="Table of texts, or .txt.")],
    query: Annotated[str, Argument(help="Text to look for.")],
    model: Annotated[str, Option(help="Checkpoint, or exported folder: its repaired vectors.")],
    text: options.Text = None,
    encoding: options.Encoding = None,
    max_length: options.MaxLength = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Print the five texts of a table that are nearest to a query.

    Example:

    isoadapt search texts.tsv 'the cat sat' --model my-model
    """
    if os.path.isfile(query) and not table.exists():  # pathlib refuses a long query
        raise WrongUsage(f"{query!r} is read as the query, but the table of texts comes before it")
    check_exist([table], [model])
    rows = read_texts([table], Columns(text, None, encoding)).rows
    _run("search", rows, query, model, max_length, Console(as_json, quiet))


@app.command()
def check(
    folder: Annotated[Path, Argument(help="Folder that export or fit wrote.")],
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run Python code in the folder.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Say whether an exported model gives the vectors and predictions of its export.

    Each library that it was written for encodes a few texts. The exit status is 1 if a result
    differs.

    Example:

    isoadapt check my-exported-model
    """
    check_exist([folder], [])
    if not _run("check", folder, trust_remote_code, Console(as_json, quiet)):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _common(
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Measure and repair the anisotropy of fine-tuned transformer embeddings.

    Begin with isoadapt demo, which needs no files, or with your own model:

    isoadapt audit my-model texts.tsv
    """
    if version:
        typer.echo(isoadapt.__version__)
        raise typer.Exit


def main() -> None:
    """Run the program.

    An expected error is printed on one line, without a traceback. The exit status is 2 for wrong
    usage, 1 for other errors, and 130 after an interrupt.
    """
    if sys.stdout is None:
        sys.exit("isoadapt: standard output is closed")
    try:
        with Console(quiet="--quiet" in sys.argv).notes():
            app()
    except KeyboardInterrupt:
        sys.exit(130)
    except _EXPECTED as error:
        message = reason(error)
        for option in (each.partition("=")[0] for each in sys.argv if each.startswith("--")):
            parameter = option[2:].replace("-", "_")
            message = re.sub(rf"^The '{re.escape(parameter)}' parameter of \w+", option, message)
        typer.echo(f"isoadapt: {message}", err=True)
        sys.exit(2 if type(error).__name__ in _WRONG_USAGE else 1)
