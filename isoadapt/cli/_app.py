"""The application: its commands, in the order of its help, and its entry point.

The code that runs a command is imported on use.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from isoadapt import __version__
from isoadapt._utils.files import ADAPTER, check_output_folder
from isoadapt._utils.messages import choices, reason
from isoadapt.adapters._registry import METHODS, NAMES
from isoadapt.cli._options import (
    TABLE,
    AsJson,
    ClassNames,
    Console,
    Head,
    Label,
    MaxLength,
    Overwrite,
    Quiet,
    Separately,
    SettingsCommand,
    Source,
    Table,
    Teacher,
    Text,
    WrongUsage,
    check_exist,
    check_matrix_file,
    check_teacher,
    columns,
    labelled_texts,
    read_class_names,
)
from isoadapt.finetune._penalties import PENALTIES

_EXPECTED = ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError, MemoryError
_WRONG_USAGE = WrongUsage.__name__, "InvalidParameterError"  # scikit-learn's, not imported yet

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def demo(
    train: Table = None,
    dev: Table = None,
    text: Text = None,
    label: Label = None,
    checkpoint: Annotated[
        str | None, Option(help="Fine-tuned checkpoint. Default: a MiniLM is fine-tuned.")
    ] = None,
    out: Annotated[Path, Option(help="Output folder.")] = Path("isoadapt-demo"),
    overwrite: Overwrite = False,
    every: Annotated[
        bool, Option("--all", help="Fit every adapter, also those that take longer.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
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
    tables = [Source(path, None, label, text=columns(text)) for path in (train, dev) if path]

    from isoadapt.cli import _demo

    _demo.demo(tables, checkpoint, out, overwrite, every, Console(as_json, quiet))


@app.command()
def audit(
    source: Annotated[
        str, Argument(help="Checkpoint (folder or name) or matrix (.npy, .parquet).")
    ],
    texts: Annotated[
        Path | None, Argument(help="Table of texts to embed with a checkpoint, or .txt.")
    ] = None,
    text: Text = None,
    separately: Separately = False,
    label: Annotated[
        str | None, Option(help="Column of labels. Each class is then reported separately too.")
    ] = None,
    max_length: MaxLength = None,
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
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say how collapsed the embeddings of texts, or a matrix of embeddings, are, and what to do.

    Example:

    isoadapt audit my-model texts.tsv
    """
    rows = Source(Path(source), None, label, None, max_length, columns(text), separately)
    if not rows.is_matrix():
        if texts is None:
            raise WrongUsage(
                f"{source!r} is read as a checkpoint, which needs texts: isoadapt audit {source} "
                "texts.tsv (the name of a matrix must end in .npy or .parquet)"
            )
        rows = rows._replace(path=texts, model=source, pooling=vectors)
    elif texts is not None or layers or vectors != "auto":
        given = "--layers" if layers else "--vectors" if texts is None else f"texts={str(texts)!r}"
        raise WrongUsage(f"{given} needs a checkpoint, but {source!r} is a matrix")
    rows = rows.checked(with_labels=label is not None)

    from isoadapt.cli import _audit

    _audit.audit(rows, layers, full, Console(as_json, quiet))


@app.command()
def compare(
    table: Annotated[Path, Argument(help=TABLE)],
    model: Annotated[str, Option(help="Checkpoint that embeds the texts.")],
    test: Annotated[
        Path | None,
        Option(
            help="Table of the same columns that the encoder has not seen: the adapters are "
            "fitted to TABLE and judged on this one. Without --test, they are judged by a "
            "cross-validation on TABLE."
        ),
    ] = None,
    encoder_saw: Annotated[
        bool | None,
        Option(
            "--encoder-saw/--encoder-unseen",
            help="Whether the encoder was trained on TABLE. If it was, --test is needed. Without "
            "one of the two, a note says what the figures cannot tell.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        Option(
            help="Table of pairs of texts, to judge similarity too. Columns: sentence1, sentence2 "
            "and, as label, the score of the pair."
        ),
    ] = None,
    pairs_text: Annotated[
        str | None, Option(help="Columns of the texts of --pairs as A,B, if they differ.")
    ] = None,
    pairs_score: Annotated[
        str | None, Option(help="Column of the scores of --pairs, if it differs.")
    ] = None,
    queries: Annotated[
        Path | None,
        Option(
            help="Table of queries, to judge search too, with --documents and --relevant. Or, "
            "alone, a table with the columns query and document: texts, and texts that they find."
        ),
    ] = None,
    documents: Annotated[Path | None, Option(help="Table of the documents to search.")] = None,
    relevant: Annotated[
        Path | None,
        Option(
            help="Table with the columns query and document. Each row names a query and a document "
            "that is relevant to it, by the columns id of their tables or, without one, by their "
            "row numbers from 1. Other queries are left out."
        ),
    ] = None,
    foreign: Annotated[
        Path | None,
        Option(
            help="Table of texts of another kind than those of TABLE, to judge the detection of "
            "outliers too."
        ),
    ] = None,
    adapters: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="fast: adapters in closed form or with an exact solver. all: also those that "
            "are trained by mini-batches, which takes longer. Or a name, and --adapters again for "
            f"each further one: {', '.join(METHODS)}; with --teacher also teacher-readout. "
            "Default: fast.",
        ),
    ] = None,
    teacher: Teacher = None,
    head: Head = "auto",
    class_names: ClassNames = None,
    text: Text = None,
    label: Label = None,
    max_length: MaxLength = None,
    jobs: Annotated[int | None, Option(help="Number of processes. Default: 1.")] = None,
    cache: Annotated[
        Path | None,
        Option(
            help="Folder to keep finished fits in. After an interrupt, the same command with the "
            "same folder goes on from there."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="Output folder for comparison.json and the best adapter of each use. Default: "
            "nothing is written."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        Option(
            "--html",
            help="File (.html) to write the result to, with an audit. It is replaced if it exists.",
        ),
    ] = None,
    with_texts: Annotated[
        bool, Option("--with-texts", help="Show the texts as tooltips in the --html file.")
    ] = False,
    full: Annotated[
        bool, Option("--all", help="Print p-values, geometry, cost and further figures too.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Print which adapters are better or worse than none, on your task and for other uses.

    Example:

    isoadapt compare train.tsv --model my-model --test dev.tsv --pairs pairs.tsv
    """
    from isoadapt.cli import _compare

    if with_texts and page is None:
        raise WrongUsage("--with-texts is about the file of --html FILE: give this option too")
    rows = Source(table, model, label, None, max_length, columns(text), teacher=teacher)
    rows = rows._replace(class_names=read_class_names(class_names))
    tables = {"test": test, "pairs": pairs, "foreign": foreign}
    tables |= {"queries": queries, "documents": documents, "relevant": relevant}
    given = {name: path for name, path in tables.items() if path is not None}
    of_pairs = columns(pairs_text), pairs_score
    outputs = (out, page, with_texts, full, Console(as_json, quiet))
    options = _compare.Run(rows, head, given, of_pairs, encoder_saw, jobs, cache, *outputs)
    _compare.compare(adapters or [], options)


@app.command(cls=SettingsCommand)
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
            metavar="NAME=VALUE...",
            help="Parameters. Several may follow one --set. For the penalty: lam (its weight, 1 by "
            "default; with istar, positive values increase isotropy and negative values decrease "
            "it), balance (ema or cumulative), and parameters of the loss, such as zeta (istar) "
            "or bars (topological-entropy). For the training: epochs, lr, batch_size, warmup, "
            "weight_decay, class_weight, random_state, device.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        Option(
            help="Vectors that are penalised: head_input, last, all, or layers such as 1,6. "
            "Default: those that the paper of the penalty uses."
        ),
    ] = None,
    class_weight: Annotated[
        str | None, Option(help="Weights of classes in the loss: balanced, or {'a': 2, 'b': 1}.")
    ] = None,
    text: Text = None,
    label: Annotated[
        str | None, Option(help="Column of labels, or several of 0 and 1 as A,B. Default: label.")
    ] = None,
    max_length: MaxLength = 128,
    out: Annotated[Path, Option(help="Output folder for the checkpoint.")] = Path(
        "isoadapt-finetuned"
    ),
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune and save a classifier, with or without an isotropy penalty, and evaluate it.

    Example:

    isoadapt finetune --model my-base --train train.tsv --penalty istar
    """
    rows = Source(train, model, columns(label), max_length=max_length, text=columns(text))
    given = [*(settings or []), *([f"where={where}"] if where else [])]
    given += [f"class_weight={class_weight}"] if class_weight else []
    if penalty is not None and penalty not in PENALTIES:
        raise WrongUsage(f"--penalty {penalty!r} is not a penalty; {choices(penalty, PENALTIES)}")
    check_exist([train, dev], [model])
    rows = rows._replace(table=labelled_texts(rows))
    check_output_folder(out, overwrite, name="--out")

    from isoadapt.cli import _finetune

    _finetune.finetune(rows, dev, penalty, given, out, overwrite, Console(as_json, quiet))


@app.command(cls=SettingsCommand)
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
    teacher: Teacher = None,
    head: Head = "auto",
    class_names: ClassNames = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE...",
            help="Parameters of the adapter. Several may follow one --set.",
        ),
    ] = None,
    text: Text = None,
    separately: Separately = False,
    label: Label = None,
    labels: Annotated[Path | None, Option(help="File with the labels of a .npy matrix.")] = None,
    max_length: MaxLength = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit an adapter to texts or to a matrix of embeddings, and save it in a folder.

    Example:

    isoadapt fit whitening --on train.tsv --model my-model --out my-adapter
    """
    if name not in NAMES:
        raise WrongUsage(f"{name!r} is not the name of an adapter; {choices(name, NAMES)}")
    source = Source(
        *(on[0], model, label, labels, max_length, columns(text), separately, tuple(on[1:])),
        teacher=teacher,
        pooling="auto" if teacher is None else "readout",
        class_names=read_class_names(class_names),
    )
    check_teacher(name, source)
    source = source.checked()
    check_output_folder(out, overwrite, content=ADAPTER, name="--out")

    from isoadapt.cli import _fit

    settings = [f"head={head}", *(settings or [])]
    _fit.fit(name, source, out, settings, overwrite, Console(as_json, quiet))


@app.command()
def transform(
    folder: Annotated[Path, Argument(help="Folder of a saved adapter.")],
    source: Annotated[Path, Argument(help="Texts or matrix (.npy, .parquet).")],
    out: Annotated[Path, Argument(help="Output file (.npy, .csv, .parquet).")],
    model: Annotated[
        str | None, Option(help="Checkpoint that embeds the texts. Default: that of the fit.")
    ] = None,
    text: Text = None,
    separately: Separately = False,
    label: Label = None,
    max_length: MaxLength = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write the vectors of texts, or a matrix of embeddings, transformed by a saved adapter.

    Example:

    isoadapt transform my-adapter dev.tsv adapted.npy
    """
    check_exist([folder, source], [model])
    check_matrix_file(out, source, overwrite)

    from isoadapt.cli import _transform

    rows = Source(source, model, label, None, max_length, columns(text), separately)
    _transform.transform(folder, rows, out, Console(as_json, quiet))


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
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write adapter and checkpoint as one model: for sentence-transformers, ONNX or transformers.

    With --onnx, or for hidden layers that sentence-transformers cannot compute,
    such as those of teacher-readout, as one graph for ONNX Runtime. With
    --merge, as a checkpoint like the given one, for adapters that change its
    predictions.

    Example:

    isoadapt export my-adapter --model my-model --out my-exported-model
    """
    check_exist([folder, model], [])
    if not overwrite and not onnx:  # a graph may be added to a folder
        check_output_folder(out, overwrite, name="--out")

    from isoadapt.cli import _export

    console = Console(as_json, quiet)
    if merge:
        if onnx or normalize or pooling != "auto":
            raise WrongUsage("--merge cannot be combined with --onnx, --normalize or --pooling")
        _export.merge(folder, model, out, overwrite, console)
    else:
        _export.export(folder, model, out, pooling, normalize, onnx, overwrite, console)


@app.command()
def check(
    folder: Annotated[Path, Argument(help="Folder that export or fit wrote.")],
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run Python code in the folder.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say whether an exported model gives the vectors and predictions of its export.

    Each library that it was written for encodes a few texts. The exit status is 1 if one differs.

    Example:

    isoadapt check my-exported-model
    """
    check_exist([folder], [])

    from isoadapt.cli import _export

    if not _export.check(folder, trust_remote_code, Console(as_json, quiet)):
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
        typer.echo(__version__)
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
        typer.echo(f"isoadapt: {reason(error)}", err=True)
        sys.exit(2 if type(error).__name__ in _WRONG_USAGE else 1)
