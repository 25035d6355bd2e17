"""Implementation of ``isoadapt demo``."""

import textwrap
from functools import partial
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
from isoadapt._utils.messages import aligned_table, warn
from isoadapt.adapters._registry import installed_variants
from isoadapt.cli._options import Console, check_file
from isoadapt.cli._sources import Rows
from isoadapt.datasets import load_similarity_pairs, make_acceptability, minilm_folder
from isoadapt.finetune import finetune_text_classifier
from isoadapt.metrics import similarity_correlation
from isoadapt.model_selection import Comparison, Similarity, compare_adapters
from isoadapt.report import SpectrumDisplay

# How much of the corpus is used, and settings that learn it soon: the sentences of a minimal pair
# share a batch.
_N_TRAIN, _N_DEV = 1280, 600
_QUICK = {"lr": 3e-4, "epochs": 2, "batch_size": 16, "shuffle": False, "freeze_embeddings": True}
_REPAIR, _LAYER = "LogitPreservingWhitening", "IsotropyLayer"
_SPECTRA, _PIPELINE, _CHECKPOINT = "spectra.png", "pipeline.joblib", "checkpoint"
_RAW = "classifier's vectors"
_ADAPTED = f"repaired by {_REPAIR}"
_TAUGHT = "with a layer of the base model"
_FEW = 300  # texts that align this layer
_BEFORE = "base model"
_wrapped = partial(textwrap.fill, width=100)
_COLLAPSED = 0.9  # share of variance in one direction from which vectors lie nearly on a line
_QUERY = "He sold his car to pay for the operation."
_PARAPHRASE = 4  # least grade of a pair whose sentences have nearly the same meaning
_LEGEND = (
    "changed: predictions that the adapter changes. similarity: as above. IsoScore: 1 if the "
    "variance is the same in all directions. s: seconds of the fit. “head refit”: the classifier's "
    "last layer is fitted again. “head refit only” and “no penalty” are controls: an adapter must "
    "be better than they are to deserve credit for the task."
)

Vectors = NDArray[Any]  # (2 n, d) of the first sentences of n pairs, then of the second ones


class PairFigures(NamedTuple):
    """How well vectors of the graded pairs serve similarity and search."""

    correlation: float  # of the cosines with the grades
    first: int  # first sentences to which their paraphrase is nearest, among the second sentences
    asked: int  # first sentences that have a paraphrase
    nearest: list[tuple[float, str]]  # cosines and sentences nearest to one first sentence


def demo(
    rows: list[Rows], model: str | None, out: Path, overwrite: bool, every: bool, console: Console
) -> None:
    """Fine-tune a checkpoint or use a given one, repair its vectors, and compare adapters."""
    out = out.expanduser()
    _check_out(out, model is None, overwrite)
    import_optional("matplotlib", feature="The plot", extra="plot")
    texts, labels, dev_texts, dev_labels = _texts_of(rows, console)
    before = None
    if model is None:
        before, settings = minilm_folder(), {"lr": 1e-4} if rows else _QUICK
        model = _fine_tune(texts, labels, out, overwrite, settings, console)
    console.say(f"Encoding {len(texts)} + {len(dev_texts)} texts with {model} ...")
    known = np.concatenate([labels, dev_labels])
    encoder, head = load_checkpoint(model, verbose=console.verbose, y=known)
    X, dev_X = encoder.transform(texts), encoder.transform(dev_texts)
    adapter, vectors = repair(encoder, head, texts, X, before)
    first, second = np.split(vectors[_RAW], 2)
    brief = [each for each in installed_variants() if each.brief]
    chosen = brief if every else [each for each in brief if each.fast or each.name == _LAYER]
    console.say("Fitting adapters and controls ...")
    comparison = compare_adapters(
        X,
        labels,
        {each.name: each.make(head) for each in chosen},
        head=head,
        X_test=dev_X,
        y_test=dev_labels,
        uses=[Similarity(first, second, load_similarity_pairs().scores)],
        encoder_saw=True,
        random_state=0,
        verbose=console.verbose,
    )
    _save_spectra(comparison.estimators, dev_X, writable_folder(out) / _SPECTRA)
    with atomic_path(out / _PIPELINE) as temporary:  # without the weights of the encoder
        joblib.dump(make_pipeline(encoder.set_params(verbose=0), adapter), temporary)
    found = {name: similarity(pair) for name, pair in vectors.items()}
    parts = [
        story(comparison, found, model, of_pairs=not isinstance(texts[0], str)),
        adapters_table(comparison),
        _next_steps(model, str(before or "my-base"), out, every),
    ]
    figures = {
        "comparison": comparison.to_dict(),
        "similarity": {name: each._asdict() for name, each in found.items()},
        "spectra": str(out / _SPECTRA),
        "pipeline": str(out / _PIPELINE),
    }
    console.show("\n" + "\n\n".join(parts), figures)


def _check_out(out: Path, fine_tunes: bool, overwrite: bool) -> None:
    """Check, before anything is computed, that the results can be written to the folder."""
    check_writable(out)
    for path in (out / _SPECTRA, out / _PIPELINE):
        check_file(path, overwrite)
    if fine_tunes:
        check_output_folder(out / _CHECKPOINT, overwrite, name="--out")


def _texts_of(tables: list[Rows], console: Console) -> tuple[Any, Any, Any, Any]:
    """Return training and evaluation texts with labels, or generate a corpus without tables."""
    if not tables:
        console.say("Texts: English sentences, labelled as acceptable (1) or not (0).")
        corpus = make_acceptability(_N_TRAIN, _N_DEV)
        return corpus.train_texts, corpus.train_labels, corpus.dev_texts, corpus.dev_labels
    train, dev = tables
    (path,), (other,), known = dev.files, train.files, set(train.rows)
    fresh = np.array([text not in known for text in dev.rows])
    if not fresh.any():
        raise ValueError(f"every text of {path} is in {other} too: name other texts with --dev")
    if not fresh.all():
        warn(f"{(~fresh).sum()} texts of {path} are in {other} too and are left out")
    kept = [dev.rows[row] for row in np.flatnonzero(fresh)]
    return train.rows, train.labels, kept, dev.labels[fresh]


def _fine_tune(
    texts: Any, labels: Any, out: Path, overwrite: bool, settings: dict[str, Any], console: Console
) -> str:
    """Fine-tune all-MiniLM-L6-v2 and return the folder of the checkpoint."""
    console.say(f"Fine-tuning all-MiniLM-L6-v2, a small encoder, on {len(texts)} texts ...")
    options = {"random_state": 0, "overwrite": overwrite, "verbose": console.verbose, **settings}
    return str(
        finetune_text_classifier(minilm_folder(), texts, labels, out / _CHECKPOINT, **options)
    )


def repair(
    encoder: TransformerEncoder,
    head: LinearHead,
    texts: Any,
    X: NDArray[Any],
    before: Path | None,
) -> tuple[LogitPreservingWhitening, dict[str, Vectors]]:
    """Fit the repair to single texts of vectors X, and embed the graded pairs in several ways."""
    if not isinstance(texts[0], str):  # of a classifier of pairs
        texts = list(dict.fromkeys(text for pair in texts for text in pair))
        X = encoder.transform(texts)
    adapter = LogitPreservingWhitening(head).fit(X)
    left, right, _ = load_similarity_pairs()
    sentences = left + right
    raw = encoder.transform(sentences)
    vectors = {_RAW: raw, _ADAPTED: adapter.transform(raw)}
    if before is not None:
        layers = clone(encoder).set_params(pooling="readout")
        few = texts[:: -(-len(texts) // _FEW)]
        vectors[_TAUGHT] = (
            AdaptedEncoder(layers, TeacherReadout(), before).fit(few).transform(sentences)
        )
        vectors[_BEFORE] = TransformerEncoder(before).transform(sentences)
    return adapter, vectors


def similarity(vectors: Vectors) -> PairFigures:
    """Evaluate vectors of the graded pairs."""
    queries, sentences, scores = load_similarity_pairs()
    first, second = np.split(vectors.astype(np.float64), 2)
    cosines = cosine_similarity(first, second)
    asked = np.flatnonzero(scores >= _PARAPHRASE)
    row = cosines[queries.index(_QUERY)]
    return PairFigures(
        similarity_correlation(first, second, scores),
        int((cosines[asked].argmax(axis=1) == asked).sum()),
        len(asked),
        [(float(row[i]), sentences[i]) for i in np.argsort(-row)[:5]],
    )


def story(
    comparison: Comparison, found: dict[str, PairFigures], checkpoint: str, of_pairs: bool
) -> str:
    """Say what is wrong with the vectors, and show similarity and search before and after."""
    rows = _rows(comparison, comparison.uses[0])
    base, repaired = rows["no adapter"], rows[_REPAIR]
    line = ""
    if base["ev1"] >= _COLLAPSED:
        line = ", so they lie nearly on a line, and their cosines hardly tell texts apart"
    n_pairs, n = len(load_similarity_pairs().scores), f"{base['n_predictions']:,}"
    intro = (
        f"{checkpoint}: {base['metric']} {base['score']:.3f} on {n} held-out "
        f"texts. One direction holds {base['ev1']:.0%} of the variance of its vectors (EV1){line}. "
        f"{_REPAIR} makes the variance equal in the directions that the classifier does not read. "
        f"It is fitted to the training texts in {repaired['fit_seconds']:.1f} s, without labels. "
        f"It changes {repaired['changed_predictions']} of {n} predictions."
    )
    table = [["", "similarity", "search"]]
    for name, each in found.items():
        table.append([name, f"{each.correlation:.3f}", f"{each.first} of {each.asked}"])
    legend = (
        f"similarity: Spearman correlation of the cosines of {n_pairs} pairs of sentences with "
        "their graded similarity; 1 is best. search: sentences that find their paraphrase first "
        f"among {n_pairs} sentences."
    )
    if of_pairs:
        legend += (
            " The checkpoint classifies pairs: here each sentence was embedded as a single text, "
            "so these vectors are not those from which it predicts."
        )
    texts = [_wrapped(intro), aligned_table(table, rule=True), _wrapped(legend), _search(found)]
    return "\n\n".join([*texts, _wrapped(_advice(found))])


def _search(found: dict[str, PairFigures]) -> str:
    """List the sentences nearest to one of the pairs, before and after the repair."""
    answer = dict(zip(*load_similarity_pairs()[:2], strict=True))[_QUERY]
    lines = [f"Search: sentences nearest to “{_QUERY}” (* its paraphrase)"]
    for name in (_RAW, _TAUGHT if _TAUGHT in found else _ADAPTED):
        lines += ["", f"{name}:"]
        for cosine, sentence in found[name].nearest:
            lines.append(f"{'*' if sentence == answer else ' '} {cosine:5.2f}  {sentence}")
    return "\n".join(lines)


def _advice(found: dict[str, PairFigures]) -> str:
    if _BEFORE not in found:
        return (
            "The base model is usually better still at similarity: compare with it if you have "
            "it, on pairs of your own."
        )
    taught, base = (found[name].correlation for name in (_TAUGHT, _BEFORE))
    return (
        "One layer of the base model on the classifier's states of tokens reaches a similarity of "
        f"{taught:.3f} in the same pass, the base model itself {base:.3f}. The predictions stay "
        "the same. Without the base model, repair the classifier's own vectors."
    )


def adapters_table(comparison: Comparison) -> str:
    """Format the figures of all adapters as one table, with verdicts."""
    task = comparison.uses[0]
    rows, similarity = _rows(comparison, task), _rows(comparison, "similarity")
    base = next(iter(rows.values()))
    shown = [
        [
            name,
            f"{row['score']:.3f}",
            str(row["changed_predictions"]),
            f"{similarity[name]['score']:.3f}",
            *(f"{row[key]:.3f}" for key in ("isoscore", "ev1")),
            f"{row['fit_seconds']:.1f}",
        ]
        for name, row in rows.items()
    ]
    header = ["", base["metric"], "changed", "similarity", "IsoScore", "EV1", "s"]
    title = f"Adapters, judged on the {base['n_predictions']:,} held-out texts:"
    table = aligned_table([header, *shown], rule=True)
    verdicts = [_wrapped(comparison.verdict(use)) for use in (task, "similarity")]
    return "\n\n".join([title, table, _wrapped(_LEGEND), "\n".join(verdicts)])


def _next_steps(checkpoint: str, base: str, out: Path, every: bool) -> str:
    lines = [
        f"Spectra before and after: {out / _SPECTRA}",
        f"Checkpoint and repair, for joblib.load: {out / _PIPELINE}",
        "",
        "What next? Both in Python, with the predictions of the classifier:",
        f"  from isoadapt import AdaptedEncoder, {_REPAIR}, TeacherReadout",
        f"  model = AdaptedEncoder({checkpoint!r}, TeacherReadout(), teacher={base!r}).fit(texts)",
        f"  model = AdaptedEncoder({checkpoint!r}, {_REPAIR}()).fit(texts)",
        "  vectors, labels = model.transform_predict(texts)",
        "Your own classifier: how bad is it, and which adapter helps?",
        "  isoadapt audit my-model texts.tsv",
        "  isoadapt compare train.tsv --model my-model --teacher my-base --test dev.tsv \\",
        "    --encoder-saw --pairs pairs.tsv",
    ]
    if not every:
        lines.append("With the adapters that take longer to fit: isoadapt demo --all --overwrite")
    return "\n".join(lines)


def _rows(comparison: Comparison, use: str) -> dict[str, dict[str, Any]]:
    return {row["adapter"]: row for row in comparison.rows if row["use"] == use}


def _save_spectra(adapters: dict[str, Any], X: NDArray[Any], path: Path) -> None:
    """Plot the spectra of embeddings before and after each adapter."""
    figures = import_optional("matplotlib.figure", feature="The plot", extra="plot")
    figure = figures.Figure(figsize=(11, 4.5), layout="constrained")
    shown = {_REPAIR: adapters[_REPAIR]} | adapters
    SpectrumDisplay.from_estimator(shown, X, ax=figure.subplots(1, 2))
    figure.suptitle("Embeddings of texts that no adapter was fitted to")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
