"""The command line ``isoadapt``: demo, audit, finetune, fit, transform and merge."""

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from isoadapt._settings import SettingsCommand
from isoadapt._utils.errors import reason

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ADAPTERS = (  # stands here so that --help need not import them
    "IsotropyLayer",
    "IStarAdapter",
    "CosRegAdapter",
    "SpectrumControlAdapter",
    "TopologicalEntropyAdapter",
    "FlowAdapter",
    "IsoBN",
    "Whitening",
    "LogitPreservingWhitening",
    "AllButTheTop",
    "ClusterIsotropy",
)
_EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)
PENALTIES = ("istar", "cosreg", "spectrum", "persistent-entropy", "isotropy")

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE...",
        help="Parameters, several after one --set or each its own.",
    ),
]
TABLE = "TSV, CSV or Parquet with a header: sentence (or sentence1, sentence2) and label."
Table = Annotated[Path | None, typer.Option(help=TABLE)]
Text = Annotated[
    str | None, typer.Option(help="Column of texts, or two of pairs as A,B; else found by name.")
]


def main() -> None:
    """Run the command line; a user's error is one line, not a traceback."""
    try:
        app()
    except _EXPECTED as error:
        sys.exit(f"isoadapt: {reason(error)}")


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Measure and repair the anisotropy of fine-tuned transformer embeddings."""
    if version:
        from isoadapt import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def demo(
    train: Table = None,
    dev: Table = None,
    text: Text = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Your fine-tuned checkpoint, in place of a MiniLM.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, picture and pipeline.")] = Path(
        "isoadapt-demo"
    ),
) -> None:
    """Fine-tune (or take) a checkpoint, fit every adapter, and compare them in one table."""
    from isoadapt import _demo, load_checkpoint
    from isoadapt._utils.files import writable_folder
    from isoadapt._utils.folders import no_empty_leftovers
    from isoadapt._utils.optional import import_optional

    out = out.expanduser()
    with no_empty_leftovers(out):
        writable_folder(out)
        import_optional("matplotlib", feature="The picture", extra="plot")
        texts, labels, dev_texts, dev_labels = _demo_data(train, dev, _columns(text))
        if checkpoint is None:
            checkpoint = _finetune(texts, labels, out)
        start = time.perf_counter()
        _say(f"Encoding {len(texts)} + {len(dev_texts)} texts with {checkpoint} ...")
        encoder, head = load_checkpoint(checkpoint, verbose=1)
        rows = _demo.compare(
            head,
            _demo.Split(encoder.transform(texts), labels),
            _demo.Split(encoder.transform(dev_texts), dev_labels),
            lambda name: _say(f"Fitting: {name} ..."),
        )
        typer.echo(f"\nJudged on {len(dev_texts)} texts that no adapter was fitted to:\n")
        typer.echo(_demo.format_table(rows))
        typer.echo(f"\n{_demo.verdict(rows, dev_labels)}\n")
        _demo.save_spectra(rows, out / "spectra.png")
        _demo.save_pipeline(encoder.set_params(verbose=0), rows, out / "pipeline.joblib")
        _say(f"Encoded, fitted and judged in {time.perf_counter() - start:.0f} s.")
        typer.echo(f"Spectra: {out / 'spectra.png'}   pipeline: {out / 'pipeline.joblib'}")


@app.command()
def audit(
    source: Annotated[
        str, typer.Argument(help="A checkpoint (folder or name), or a matrix: .npy, .parquet.")
    ],
    texts: Annotated[
        Path | None, typer.Argument(help="Texts for a checkpoint: .tsv, .csv, .parquet.")
    ] = None,
    text: Text = None,
    label: Annotated[
        str | None, typer.Option(help="Column of labels, to report each class too.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens a text is cut to.")] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Report the tokens of each layer instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the isotropy of a model on texts, or of a matrix of embeddings."""
    from isoadapt._commands import check_several_rows
    from isoadapt.encoders import layer_report, measure_truncation
    from isoadapt.metrics import isotropy_report

    truncation = None
    if layers:
        _check_layers(source, label)
    if _is_matrix(source):
        X, groups = _read_matrix(source, texts, label)
        check_several_rows(X, source)
    else:
        encoder, rows, groups = _read_texts(source, texts, text, label, max_length)
        truncation = measure_truncation(encoder, rows)
        if layers:
            _print_report(lambda: layer_report(encoder, rows), as_json, truncation)
            return
        check_several_rows(rows, str(texts))
        X = encoder.transform(rows)
    _print_report(lambda: isotropy_report(X, groups=groups), as_json, truncation)


@app.command(cls=SettingsCommand)
def finetune(
    model: Annotated[str, typer.Option(help="Folder or name of the model to start from.")],
    train: Annotated[Path, typer.Option(help=TABLE)],
    dev: Annotated[Path | None, typer.Option(help="Such a table to judge the result on.")] = None,
    penalty: Annotated[
        str | None, typer.Option(help=f"What joins the task's loss: {', '.join(PENALTIES)}.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE...",
            help="Several after one --set or each its own. Of the penalty: lam, its weight (1 by "
            "default: for istar that is MORE isotropy, -1 is less), balance (ema, cumulative), "
            "and its parameters, such as zeta (istar) or bars (persistent-entropy). Of the "
            "training: epochs, lr, batch_size, warmup, weight_decay, random_state, device.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Train as a paper does, which brings no penalty: 000 (persistent entropy), "
            "002 (I-STAR), 003 (Isotropy Layer), 004 (CosReg, spectrum control, flow)."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="What is penalised: head_input, last, all, or layers like 1,6; else the "
            "penalty's own place."
        ),
    ] = None,
    text: Text = None,
    label: Annotated[str | None, typer.Option(help="Column of labels.")] = None,
    max_length: Annotated[int, typer.Option(help="Tokens a text is cut to.")] = 128,
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = Path(
        "isoadapt-finetuned"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint.")] = False,
) -> None:
    """Fine-tune a classifier, with or without an isotropy penalty, and judge it."""
    from isoadapt import _finetune_command as command

    tables = command.Tables(train, dev, _columns(text), label, max_length)
    given = [*(settings or []), *([f"where={where}"] if where else [])]
    typer.echo(command.finetune(model, tables, penalty, given, recipe, out, overwrite, _say))


@app.command(cls=SettingsCommand)
def fit(
    name: Annotated[str, typer.Argument(help=f"The adapter: {', '.join(ADAPTERS)}.")],
    on: Annotated[
        Path, typer.Option(help="Texts (.tsv, .csv, .parquet), or a .npy or .parquet matrix.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the adapter.")],
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint that embeds the texts; its head is the adapter's head."),
    ] = None,
    settings: Settings = None,
    text: Text = None,
    label: Annotated[str | None, typer.Option(help="Column of labels.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels beside a .npy matrix.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens a text is cut to.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an adapter.")] = False,
) -> None:
    """Fit an adapter to texts or to a matrix of embeddings, and save it as a folder."""
    from isoadapt import _commands

    source = _commands.Source(on, model, label, labels, max_length, _columns(text))
    typer.echo(_commands.fit(name, source, out, settings or [], overwrite, _say))


@app.command()
def transform(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved adapter.")],
    source: Annotated[Path, typer.Argument(help="Texts, or a .npy or .parquet matrix.")],
    out: Annotated[Path, typer.Argument(help="File for the result, .npy or .parquet.")],
    model: Annotated[
        str | None, typer.Option(help="Checkpoint for texts; else the one it was fitted with.")
    ] = None,
    text: Text = None,
    label: Annotated[str | None, typer.Option(help="Column of labels, which is left out.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens a text is cut to.")] = None,
) -> None:
    """Adapt texts, or a matrix of embeddings, by a saved adapter."""
    from isoadapt import _commands

    rows = _commands.Source(source, model, label, max_length=max_length, text=_columns(text))
    typer.echo(_commands.transform(folder, rows, out, _say))


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved affine adapter.")],
    model: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder for the merged checkpoint.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint.")] = False,
) -> None:
    """Fold an affine adapter into a checkpoint, which then is served without isoadapt."""
    from isoadapt import _commands

    typer.echo(_commands.merge(folder, model, out, overwrite))


def _columns(text: str | None) -> list[str] | None:
    return None if text is None else text.split(",")


def _print_report(measure: Callable[[], Any], as_json: bool, truncation: Any) -> None:
    """Measure and print, with what was truncated of the texts; warnings become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = measure()
    for warning in caught:
        _say(f"Note: {warning.message}")
    if as_json:
        figures = report.to_dict() | ({"truncation": truncation.to_dict()} if truncation else {})
        typer.echo(json.dumps(_plain(figures), indent=2))
        return
    typer.echo(str(report))
    if truncation is not None:
        typer.echo(str(truncation))


def _plain(value: Any) -> Any:
    """Nested figures for JSON, which has no NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if value != value else value


def _is_matrix(source: str) -> bool:
    return source.lower().endswith((".npy", ".parquet"))


def _read_matrix(source: str, texts: Path | None, label: str | None) -> tuple[Any, Any]:
    from isoadapt.datasets import load_matrix

    if texts is not None:
        raise ValueError(f"texts={str(texts)!r} needs a checkpoint, but {source!r} is a matrix")
    if label is not None and source.lower().endswith(".npy"):
        raise ValueError(f"--label {label}: a .npy matrix has no columns; use Parquet")
    X, labels = load_matrix(source, label=label or "label")
    return X, labels if label else None


def _demo_data(
    train: Path | None, dev: Path | None, text: list[str] | None
) -> tuple[Any, Any, Any, Any]:
    if (train is None) != (dev is None):
        raise ValueError("--train and --dev go together: give both or neither")
    if train is None or dev is None:
        from isoadapt.datasets import make_acceptability

        corpus = make_acceptability(random_state=0)
        return corpus.train_texts, corpus.train_labels, corpus.dev_texts, corpus.dev_labels
    from isoadapt.datasets import load_table

    texts, labels = load_table(train, text=text)
    dev_texts, dev_labels = load_table(dev, text=text)
    for path, found in ((train, labels), (dev, dev_labels)):
        if found is None:
            raise ValueError(f"{path} has no column 'label': the demo needs labels")
    if set(texts) & set(dev_texts):
        _say(f"Note: {len(set(texts) & set(dev_texts))} texts are in both tables.")
    return texts, labels, dev_texts, dev_labels


def _finetune(texts: Any, labels: Any, out: Path) -> str:
    from isoadapt.datasets import minilm_folder
    from isoadapt.finetune import finetune_text_classifier

    start = time.perf_counter()
    _say(
        f"Fine-tuning all-MiniLM-L6-v2 on {len(texts)} texts (one to three minutes on 2 cores) ..."
    )
    folder = finetune_text_classifier(
        minilm_folder(),
        texts,
        labels,
        out / "checkpoint",
        lr=1e-4,
        random_state=0,
        overwrite=True,
        verbose=1,
    )
    _say(f"Fine-tuned in {time.perf_counter() - start:.0f} s.")
    return str(folder)


def _check_layers(source: str, label: str | None) -> None:
    if _is_matrix(source):
        raise ValueError(
            f"--layers needs a checkpoint and texts, but {source!r} is a matrix, which has no "
            "layers; leave --layers out, or name the checkpoint"
        )
    if label is not None:
        raise ValueError(
            f"--label {label} and --layers do not go together: tokens have no class; leave one out"
        )


def _read_texts(
    source: str,
    texts: Path | None,
    text: str | None,
    label: str | None,
    max_length: int | None,
) -> tuple[Any, Any, Any]:
    """Give the encoder of a checkpoint, the texts of a table, and their labels if named."""
    from isoadapt import TransformerEncoder
    from isoadapt.datasets import load_table

    if texts is None:
        raise ValueError(
            f"{source!r} is taken for a checkpoint, which needs texts: isoadapt audit {source} "
            "texts.tsv (a matrix must end in .npy or .parquet)"
        )
    rows, labels = load_table(texts, text=_columns(text), label=label)
    encoder = TransformerEncoder(source, max_length=max_length, verbose=1)
    return encoder, rows, labels if label else None


def _say(message: str) -> None:
    typer.echo(message, err=True)
