"""Implementation of ``isoadapt demo``."""

import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    LinearHead,
    LogitPreservingWhitening,
    TeacherReadout,
    TransformerEncoder,
    load_checkpoint,
)
from isoadapt._utils.files import atomic_path, check_output_folder, check_writable, writable_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import aligned_table
from isoadapt.adapters._registry import installed_variants
from isoadapt.cli._options import Console, WrongUsage, labelled_texts
from isoadapt.datasets import load_similarity_pairs, make_acceptability, minilm_folder
from isoadapt.finetune import finetune_text_classifier
from isoadapt.metrics import similarity_correlation
from isoadapt.model_selection import Comparison, compare_adapters
from isoadapt.report import SpectrumDisplay

_BASE = "no adapter"
_LAYER = "IsotropyLayer, minibatch"
_HIGHLIGHTED = ("LogitPreservingWhitening", _LAYER, "CosRegAdapter", "AllButTheTop, head refit")
_SPECTRA, _PIPELINE, _CHECKPOINT = "spectra.png", "pipeline.joblib", "checkpoint"
_FIGURES = {
    "matthews": "MCC",
    "cross_entropy": "loss",
    "mse": "MSE",
    "isoscore": "IsoScore",
    "ev1": "EV1",
    "mean_cosine": "cosine",
}
_LEGEND = (
    "MCC: Matthews correlation. loss: cross-entropy. IsoScore: 1 is isotropic. EV1: share of the "
    "first principal direction. cosine: its mean over pairs of texts. s: seconds of the fit."
)
_RAW = "classifier's vectors"
_CENTRED = "classifier's vectors, centred"
_ADAPTED = "adapted by LogitPreservingWhitening"
_TAUGHT = "TeacherReadout, taught by the encoder before fine-tuning"
_BEFORE = "encoder before fine-tuning"
_RESAMPLES = 200
_QUERY = "He sold his car to pay for the operation."
_PARAPHRASE = 4  # least grade of a pair whose sentences have nearly the same meaning

Vectors = tuple[NDArray[Any], NDArray[Any]]  # of the first and of the second sentences


class Similarity(NamedTuple):
    """Correlations with the grades of the sentence pairs, and the effect on predictions."""

    correlations: dict[str, float]
    hits: dict[str, dict[str, Any]]  # of a search with the first sentences among the second
    gain: float  # of the adapter over the raw vectors
    noise: float  # two standard errors of the gain
    predictions: str
    single_texts: bool  # whether a classifier of pairs embedded single sentences


class _Split(NamedTuple):
    """Embeddings and targets."""

    X: NDArray[Any]
    y: NDArray[Any]


class _Row(NamedTuple):
    """One line of the table; controls have neither embeddings nor an adapter."""

    name: str
    figures: dict[str, Any]
    embeddings: NDArray[Any] | None
    adapter: Any


def demo(
    train: Path | None,
    dev: Path | None,
    text: list[str] | None,
    label: str | None,
    checkpoint: str | None,
    out: Path,
    overwrite: bool,
    console: Console,
) -> None:
    """Fine-tune a checkpoint or use a given one, fit every adapter, and compare the results."""
    if (train is None) != (dev is None):
        raise WrongUsage("--train and --dev must be given together")
    if train is None and (text or label):
        raise WrongUsage("--text and --label name columns of tables: give --train and --dev too")
    out = out.expanduser()
    with console.notes():
        _check_out(out, checkpoint is None, overwrite)
        import_optional("matplotlib", feature="The plot", extra="plot")
        texts, labels, dev_texts, dev_labels = _read_tables(train, dev, text, label, console)
        before = minilm_folder() if checkpoint is None else None
        if checkpoint is None:
            checkpoint = _fine_tune(texts, labels, out, overwrite, console)
        start = time.perf_counter()
        console.say(f"Encoding {len(texts)} + {len(dev_texts)} texts with {checkpoint} ...")
        encoder, head = load_checkpoint(checkpoint, verbose=console.verbose)
        train_rows = _Split(encoder.transform(texts), labels)
        dev_rows = _Split(encoder.transform(dev_texts), dev_labels)
        console.say("Fitting every adapter and the controls ...")
        comparison = _compare(head, train_rows, dev_rows, console)
        rows = _table_rows(comparison, dev_rows)
        _save_spectra(rows, writable_folder(out) / _SPECTRA)
        _save_pipeline(encoder.set_params(verbose=0), rows, out / _PIPELINE)
        result = similarity(encoder, head, texts, train_rows.X, dev_rows.X, before)
        console.say(f"Encoded, fitted and evaluated in {time.perf_counter() - start:.0f} s.")
    _show(comparison, rows, result, checkpoint, out, len(dev_texts), console)


def _check_out(out: Path, fine_tunes: bool, overwrite: bool) -> None:
    """Check, before anything is computed, that the results can be written to the folder."""
    check_writable(out)
    for path in (out / _SPECTRA, out / _PIPELINE):
        if path.is_dir():
            raise FileExistsError(f"{str(path)!r} is a folder; choose another --out")
        if path.exists() and not overwrite:
            raise FileExistsError(
                f"{str(path)!r} exists; choose another --out, or allow the results in it to be "
                "replaced (--overwrite)"
            )
    if fine_tunes:
        check_output_folder(out / _CHECKPOINT, overwrite, name="--out")


def _show(
    comparison: Comparison,
    rows: list[_Row],
    result: Similarity,
    checkpoint: str,
    out: Path,
    n_texts: int,
    console: Console,
) -> None:
    """Print the tables, the verdicts and the written files."""
    files = {"spectra": str(out / _SPECTRA), "pipeline": str(out / _PIPELINE)}
    text = (
        f"\nEvaluated on {n_texts} texts that no adapter was fitted to:\n\n"
        f"{_format_table(rows)}\n\n{wrapped(_LEGEND)}\n\n{wrapped(comparison.verdict())}\n\n"
        f"{report(result)}\n\nSpectra: {files['spectra']}\nPipeline: {files['pipeline']}\n\n"
        f"{search_report(result, checkpoint)}"
    )
    figures = {"comparison": comparison.to_dict(), "similarity": result._asdict(), **files}
    console.show(text, figures)


def _read_tables(
    train: Path | None,
    dev: Path | None,
    text: list[str] | None,
    label: str | None,
    console: Console,
) -> tuple[Any, Any, Any, Any]:
    """Read training and evaluation texts with labels, or generate a corpus without tables."""
    if train is None or dev is None:
        corpus = make_acceptability(random_state=0)
        return corpus.train_texts, corpus.train_labels, corpus.dev_texts, corpus.dev_labels
    texts, labels = labelled_texts(train, text, label)
    dev_texts, dev_labels = labelled_texts(dev, text, label)
    known = set(texts)
    fresh = np.array([text not in known for text in dev_texts])
    if not fresh.any():
        raise ValueError(f"every text of {dev} is in {train} too: name other texts with --dev")
    if not fresh.all():
        console.say(f"Note: {(~fresh).sum()} texts of {dev} are in {train} too and are left out.")
    return texts, labels, [dev_texts[row] for row in np.flatnonzero(fresh)], dev_labels[fresh]


def _fine_tune(texts: Any, labels: Any, out: Path, overwrite: bool, console: Console) -> str:
    """Fine-tune all-MiniLM-L6-v2 and return the folder of the checkpoint."""
    start = time.perf_counter()
    console.say(
        f"Fine-tuning all-MiniLM-L6-v2 on {len(texts)} texts (one to three minutes on 2 cores) ..."
    )
    folder = finetune_text_classifier(
        minilm_folder(),
        texts,
        labels,
        out / _CHECKPOINT,
        lr=1e-4,
        random_state=0,
        overwrite=overwrite,
        verbose=console.verbose,
    )
    console.say(f"Fine-tuned in {time.perf_counter() - start:.0f} s.")
    return str(folder)


def _compare(head: LinearHead, train: _Split, dev: _Split, console: Console) -> Comparison:
    """Fit every adapter on the training rows and judge it on the other rows."""
    comparison = compare_adapters(
        train.X,
        train.y,
        {variant.name: variant.make(head) for variant in installed_variants() if variant.brief},
        head=head,
        X_test=dev.X,
        y_test=dev.y,
        encoder_saw=True,
        random_state=0,
        verbose=console.verbose,
    )
    if _LAYER not in comparison.estimators:
        raise ValueError(f"the demo needs {_LAYER}: {'; '.join(comparison.notes)}")
    return comparison


def _table_rows(comparison: Comparison, dev: _Split) -> list[_Row]:
    """Rows of the task, with the embeddings of the judged rows."""
    rows = []
    for figures in comparison.rows:
        if figures["use"] != comparison.uses[0]:
            continue
        name = figures["adapter"]
        adapter = comparison.estimators.get(name)
        embeddings = dev.X if name == _BASE else None
        if adapter is not None:
            embeddings = adapter.transform(dev.X.astype(np.float64))
        rows.append(_Row(name, figures, embeddings, adapter))
    return rows


def _format_table(rows: list[_Row]) -> str:
    """Format the rows as an aligned table."""
    shown = [key for key in _FIGURES if key in rows[0].figures]
    header = ["", rows[0].figures["metric"], *(_FIGURES[key] for key in shown), "s"]
    cells = [
        [
            row.name,
            *(f"{row.figures[key]:.4f}" for key in ("score", *shown)),
            "-" if row.name == _BASE else f"{row.figures['fit_seconds']:.1f}",
        ]
        for row in rows
    ]
    return aligned_table([header, *cells], rule=True)


def _save_spectra(rows: list[_Row], path: Path) -> None:
    """Plot the spectra of the embeddings before and after each adapter."""
    figures = import_optional("matplotlib.figure", feature="The plot", extra="plot")
    figure = figures.Figure(figsize=(11, 4.5), layout="constrained")
    embeddings = {row.name: row.embeddings for row in rows if row.embeddings is not None}
    highlight = [name for name in _HIGHLIGHTED if name in embeddings]
    SpectrumDisplay.from_embeddings(
        embeddings, baseline=_BASE, highlight=highlight, ax=figure.subplots(1, 2)
    )
    figure.suptitle("Embeddings of texts that no adapter was fitted to")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _save_pipeline(encoder: TransformerEncoder, rows: list[_Row], path: Path) -> None:
    """Save the encoder and the fitted Isotropy Layer as one pipeline, without the weights."""
    layer = next(row.adapter for row in rows if row.name == _LAYER)
    with atomic_path(path) as temporary:
        joblib.dump(make_pipeline(encoder, layer), temporary)


def similarity(
    encoder: TransformerEncoder,
    head: LinearHead,
    texts: Any,
    train: NDArray[Any],
    dev: NDArray[Any],
    before: Path | None,
) -> Similarity:
    """Evaluate embeddings on graded pairs without and with an adapter.

    The adapter is fitted on the training texts, without labels, and so is a readout if `before`,
    the encoder before fine-tuning, is known. `train` and `dev` are the embeddings of these texts
    and of others.
    """
    of_pairs = not isinstance(texts[0], str)
    if of_pairs:
        texts = list(dict.fromkeys(text for pair in texts for text in pair))
        train = encoder.transform(texts)
    adapter = LogitPreservingWhitening(head).fit(train)
    raw = _embed(encoder)
    adapted = adapter.transform(raw[0]), adapter.transform(raw[1])
    mean = train.mean(axis=0)
    vectors = {_RAW: raw, _CENTRED: (raw[0] - mean, raw[1] - mean), _ADAPTED: adapted}
    if before is not None:
        layers = clone(encoder).set_params(pooling="readout")
        vectors[_TAUGHT] = _embed(AdaptedEncoder(layers, TeacherReadout(), before).fit(texts))
        vectors[_BEFORE] = _embed(TransformerEncoder(before))
    scores = load_similarity_pairs().scores
    correlations = {name: similarity_correlation(*pair, scores) for name, pair in vectors.items()}
    return Similarity(
        correlations,
        {name: _search(*vectors[name]) for name in (_RAW, _ADAPTED, _TAUGHT) if name in vectors},
        correlations[_ADAPTED] - correlations[_RAW],
        2 * _error_of_gain(raw, adapted, scores),
        _effect_on_predictions(head, dev, adapter.transform(dev)),
        of_pairs,
    )


def report(result: Similarity) -> str:
    """Format the correlations as a table, and say in plain words what they mean."""
    n_pairs = len(load_similarity_pairs().scores)
    rows = [(name, f"{value:8.4f}") for name, value in result.correlations.items()]
    title = f"Similarity: {n_pairs} graded sentence pairs, Spearman correlation of the cosines"
    notes = [f"{_gain(result)} {result.predictions}"]
    if result.single_texts:
        notes.append(
            "The checkpoint classifies pairs: each sentence was embedded as a single text, so "
            "these vectors are not those from which it predicts."
        )
    sentences = map(wrapped, [*notes, _advice(result)])
    return "\n".join([f"{title}\n", aligned_table(rows), "", *sentences])


def search_report(result: Similarity, checkpoint: str) -> str:
    """List the sentences nearest to one of the pairs, and the code that makes these vectors."""
    answer = dict(zip(*load_similarity_pairs()[:2], strict=True))[_QUERY]
    lines = [f"Search among sentences: nearest to “{_QUERY}” (* its paraphrase)"]
    for name, found in result.hits.items():
        counted = f"{found['first']} of {found['of']} find their paraphrase first"
        lines += ["", f"{name}: {counted}"]
        for cosine, sentence in found["nearest"]:
            lines.append(f"{'*' if sentence == answer else ' '} {cosine:5.2f}  {sentence}")
    lines += ["", "The same in Python, with the predictions of the classifier:"]
    calls = {_ADAPTED: "LogitPreservingWhitening()"}
    calls[_TAUGHT] = "TeacherReadout(), teacher=minilm_folder()"
    for name in filter(calls.get, result.hits):
        lines.append(f"  AdaptedEncoder({checkpoint!r}, {calls[name]}).fit(texts)")
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """Break lines longer than 100 columns."""
    return "\n".join(textwrap.fill(line, 100) for line in text.splitlines())


def _embed(encoder: TransformerEncoder | AdaptedEncoder) -> Vectors:
    left, right, _ = load_similarity_pairs()
    vectors = encoder.transform(left + right)
    return vectors[: len(left)], vectors[len(left) :]


def _search(left: NDArray[Any], right: NDArray[Any]) -> dict[str, Any]:
    """Count the sentences that find their paraphrase first; list those nearest to the query."""
    queries, sentences, scores = load_similarity_pairs()
    cosines = cosine_similarity(left.astype(np.float64), right.astype(np.float64))
    asked = np.flatnonzero(scores >= _PARAPHRASE)
    row = cosines[queries.index(_QUERY)]
    nearest = [(float(row[i]), sentences[i]) for i in np.argsort(-row)[:5]]
    first = int((cosines[asked].argmax(axis=1) == asked).sum())
    return {"first": first, "of": len(asked), "nearest": nearest}


def _error_of_gain(raw: Vectors, adapted: Vectors, scores: NDArray[Any]) -> float:
    """Return the bootstrap standard error of the adapter's gain, over resampled pairs."""
    rng = np.random.default_rng(0)
    samples = rng.integers(len(scores), size=(_RESAMPLES, len(scores)))
    gains = [
        similarity_correlation(adapted[0][i], adapted[1][i], scores[i])
        - similarity_correlation(raw[0][i], raw[1][i], scores[i])
        for i in samples
    ]
    return float(np.std(gains))


def _effect_on_predictions(head: LinearHead, X: NDArray[Any], Z: NDArray[Any]) -> str:
    if head.classes_ is None:
        change = np.abs(head.predict(Z) - head.predict(X)).max()
        return f"It changed a predicted value by at most {change:.1e}."
    changed = int((head.predict(Z) != head.predict(X)).sum())
    return f"It changed {changed} of {len(X)} predictions on the other texts."


def _gain(result: Similarity) -> str:
    if abs(result.gain) <= result.noise:
        effect = "changes the correlation within noise"
    else:
        effect = f"{'raises' if result.gain > 0 else 'lowers'} the correlation beyond noise"
    return (
        f"The adapter, fitted on the training texts without labels, {effect} "
        f"({result.gain:+.4f} ± {result.noise:.4f})."
    )


def _advice(result: Similarity) -> str:
    before, adapted = result.correlations.get(_BEFORE), result.correlations[_ADAPTED]
    if before is None:
        return (
            "The encoder before fine-tuning is usually better still at similarity: compare with it "
            "if you have it, on pairs of your own."
        )
    comparison = "better" if before > adapted else "not better here"
    return (
        f"The encoder before fine-tuning is {comparison} at similarity, so use it for that if you "
        "have it and can run two models. The vectors above it are for one model that must do both."
    )
