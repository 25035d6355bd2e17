"""The command line: ``isoadapt demo`` and ``isoadapt audit``."""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Table = Annotated[Path | None, typer.Option(help="TSV or CSV in GLUE's shape.")]


def main() -> None:
    """Run the command line; a user's error is one line, not a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
        sys.exit(f"isoadapt: {error}")


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
    checkpoint: Annotated[
        str | None, typer.Option(help="Your fine-tuned checkpoint, in place of a MiniLM.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, picture and pipeline.")] = Path(
        "isoadapt-demo"
    ),
) -> None:
    """Fine-tune (or take) a checkpoint, fit every adapter, and compare them in one table."""
    from isoadapt import _demo, load_checkpoint
    from isoadapt._files import writable_folder
    from isoadapt._optional import import_optional

    writable_folder(out)
    import_optional("matplotlib", feature="The picture", extra="plot")
    texts, labels, dev_texts, dev_labels = _demo_data(train, dev)
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
    source: Annotated[str, typer.Argument(help="A checkpoint (folder or name), or a .npy matrix.")],
    texts: Annotated[
        Path | None, typer.Argument(help="TSV or CSV of texts, for a checkpoint.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of labels, to report each class too.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens a text is cut to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the isotropy of a model on texts, or of a matrix of embeddings."""
    from isoadapt.metrics import isotropy_report

    groups = None
    if source.endswith(".npy"):
        if texts is not None:
            raise ValueError(f"texts={str(texts)!r} needs a checkpoint, but {source!r} is a matrix")
        X = _load_matrix(source)
    else:
        X, groups = _embed(source, texts, label, max_length)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = isotropy_report(X, groups=groups)
    for warning in caught:
        _say(f"Note: {warning.message}")
    typer.echo(json.dumps(_plain(report.to_dict()), indent=2) if as_json else str(report))


def _plain(value: Any) -> Any:
    """Nested figures for JSON, which has no NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if value != value else value


def _load_matrix(source: str) -> Any:
    try:
        return np.load(source, mmap_mode="r")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{source!r} does not exist") from error
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{source!r} is no matrix of numbers ({error}); write it with numpy.save"
        ) from error


def _demo_data(train: Path | None, dev: Path | None) -> tuple[Any, Any, Any, Any]:
    if (train is None) != (dev is None):
        raise ValueError("--train and --dev go together: give both or neither")
    if train is None or dev is None:
        from isoadapt.datasets import make_acceptability

        corpus = make_acceptability(random_state=0)
        return corpus.train_texts, corpus.train_labels, corpus.dev_texts, corpus.dev_labels
    from isoadapt.datasets import load_table

    texts, labels = load_table(train)
    dev_texts, dev_labels = load_table(dev)
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


def _embed(
    source: str, texts: Path | None, label: str | None, max_length: int | None
) -> tuple[Any, Any]:
    from isoadapt import TransformerEncoder
    from isoadapt.datasets import load_table

    if texts is None:
        raise ValueError(
            f"{source!r} is taken for a checkpoint, which needs texts: isoadapt audit {source} "
            "texts.tsv (a matrix must end in .npy)"
        )
    rows, labels = load_table(texts, label=label)
    encoder = TransformerEncoder(source, max_length=max_length, verbose=1)
    return encoder.transform(rows), labels if label else None


def _say(message: str) -> None:
    typer.echo(message, err=True)
