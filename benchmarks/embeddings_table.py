"""What the adapters do to stored embeddings: `python -m benchmarks.embeddings_table`.

Fitted on the training rows, judged on test rows (dev where there is no test split). No model is
loaded. Prints Markdown; `--write FILE` puts it into a section of that file.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

from benchmarks._data import Embeddings, load_embeddings, stored_tasks
from benchmarks._exact_checks import exact_section
from benchmarks._harness import versions
from benchmarks._report import markdown_table, replace_section
from isoadapt import IsotropyLayer, LinearHead, LogitPreservingWhitening, Whitening
from isoadapt.heads import fit_head
from isoadapt.metrics import isotropy_report

HEADER = (
    "accuracy",
    "Matthews",
    "cross-entropy",
    "IsoScore",
    "corrected",
    "EV1",
    "mean cosine",
    "fit, s",
)
NO_PENALTY = "same layer, no penalty"
MINIBATCH = "IsotropyLayer, minibatch"
EXACT = "IsotropyLayer, exact"
PRESERVING = "LogitPreservingWhitening"


@dataclass(frozen=True)
class Figures:
    """What is judged, for one fit on one set of rows."""

    accuracy: float
    matthews: float
    cross_entropy: float
    isoscore: float
    corrected: float
    ev1: float
    mean_cosine: float
    seconds: float


@dataclass(frozen=True)
class Judged:
    """A row of the table: the figures of each fit and the predictions of the first."""

    name: str
    figures: tuple[Figures, ...]
    predictions: NDArray[Any]

    def values(self, column: str) -> NDArray[np.float64]:
        """One column, an entry for each fit."""
        return np.array([getattr(figures, column) for figures in self.figures])

    def cells(self) -> list[str]:
        """Means over the fits, with standard deviations where there are several."""
        return [self.name, *(_mean_sd(self.values(column)) for column in asdict(self.figures[0]))]


def judge_task(data: Embeddings, seeds: Sequence[int]) -> list[Judged]:
    """Fit and judge every row of the table."""
    makers: dict[str, tuple[Callable[[int], Any], Sequence[int]]] = {
        NO_PENALTY: (lambda seed: IsotropyLayer(data.head, alpha=1.0, random_state=seed), seeds),
        MINIBATCH: (lambda seed: IsotropyLayer(data.head, random_state=seed), seeds),
        EXACT: (lambda seed: IsotropyLayer(data.head, solver="exact"), [0]),
        "Whitening, head refit": (lambda seed: Whitening(head=data.head), [0]),
        PRESERVING: (lambda seed: LogitPreservingWhitening(data.head), [0]),
    }
    begun = time.perf_counter()
    probe = fit_head("logistic", data.X_train, data.y_train)
    probe_seconds = time.perf_counter() - begun
    return [
        _judge_head("no adapter", data.head, data, 0.0),
        _judge_head("head refit only", probe, data, probe_seconds),
        *(_judge_adapter(name, maker, data, own) for name, (maker, own) in makers.items()),
    ]


def _judge_head(name: str, head: LinearHead, data: Embeddings, seconds: float) -> Judged:
    return Judged(
        name,
        (_figures(head.predict_proba(data.X_test), data.X_test, data, seconds),),
        head.predict(data.X_test),
    )


def _judge_adapter(
    name: str, make: Callable[[int], Any], data: Embeddings, seeds: Sequence[int]
) -> Judged:
    figures, predictions = [], []
    for seed in seeds:
        begun = time.perf_counter()
        adapter = make(seed).fit(data.X_train, data.y_train)
        seconds = time.perf_counter() - begun
        adapted = adapter.transform(data.X_test)
        figures.append(_figures(adapter.predict_proba(data.X_test), adapted, data, seconds))
        predictions.append(adapter.predict(data.X_test))
    return Judged(name, tuple(figures), predictions[0])


def _figures(
    probabilities: NDArray[Any], embeddings: NDArray[Any], data: Embeddings, seconds: float
) -> Figures:
    predicted = data.head.known_classes()[probabilities.argmax(axis=1)]
    with warnings.catch_warnings():  # few rows bias the plain score: the table shows both
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        report = isotropy_report(embeddings)
    return Figures(
        accuracy=float(accuracy_score(data.y_test, predicted)),
        matthews=float(matthews_corrcoef(data.y_test, predicted)),
        cross_entropy=float(log_loss(data.y_test, probabilities)),
        isoscore=report.isoscore,
        corrected=report.isoscore_corrected,
        ev1=report.ev1,
        mean_cosine=report.mean_cosine,
        seconds=seconds,
    )


def bootstrap_error(accuracy: float, n: int, draws: int = 2000) -> float:
    """Bootstrap standard error of an accuracy.

    Rows drawn with replacement from n rows, of which a share is right, are right as often as a
    binomial variable says.
    """
    return float(np.random.default_rng(0).binomial(n, accuracy, draws).std(ddof=1) / n)


def task_section(data: Embeddings, seeds: Sequence[int]) -> str:
    """Return the table of a task and its checks."""
    judged = judge_task(data, seeds)
    base = judged[0]
    error = bootstrap_error(base.figures[0].accuracy, len(data.y_test))
    rows = [row.cells() for row in judged]
    blank = [""] * (len(HEADER) - 1)
    rows.insert(1, ["its bootstrap standard error", f"{error:.4f}", *blank])
    header = [f"{data.name}, n={len(data.y_test)}", *HEADER]
    checks = [f"- {line}" for line in task_checks({row.name: row for row in judged}, error)]
    return f"{markdown_table(header, rows)}\n\n" + "\n".join(checks)


def task_checks(judged: dict[str, Judged], error: float) -> list[str]:
    """Return one line for each claim, with what was found."""
    base = judged["no adapter"]
    minibatch = judged[MINIBATCH].values("corrected")
    changed = int((judged[PRESERVING].predictions != base.predictions).sum())
    lines = [
        f"{MINIBATCH}: corrected IsoScore, mean {minibatch.mean():.3f}, lowest "
        f"{minibatch.min():.3f}, at least 0.15: {_yes(minibatch.min() >= 0.15)}"
    ]
    for name in (EXACT, PRESERVING):
        score, seconds = judged[name].figures[0].corrected, judged[name].figures[0].seconds
        good = score >= 0.55 and seconds < 5
        lines.append(
            f"{name}: corrected IsoScore {score:.3f} in {seconds:.2f} s, at least 0.55 in under "
            f"5 s: {_yes(good)}"
        )
    lines.append(f"{PRESERVING}: {changed} of {len(base.predictions)} predictions changed")
    floor = base.figures[0].accuracy - error
    for name in (MINIBATCH, EXACT):
        accuracy = judged[name].values("accuracy")
        lines.append(
            f"{name}: accuracy not under the base's by more than one standard error "
            f"({floor:.4f}): {int((accuracy >= floor).sum())} of {len(accuracy)} fits; their mean "
            f"{accuracy.mean():.4f}: {_yes(accuracy.mean() >= floor)}"
        )
    return lines


def report(tasks: Sequence[str], n_seeds: int) -> str:
    """Return the whole section."""
    setting = ", ".join(f"{name} {value}" for name, value in versions().items() if value)
    parts = [
        "Adapters fitted on the training rows, judged on rows that neither they nor the encoder "
        f"saw. Rows that depend on a seed: mean ± standard deviation over {n_seeds} seeds. "
        "Corrected: IsoScore without the bias of few rows. A gain of IsotropyLayer counts only "
        f"against “head refit only” and “{NO_PENALTY}”."
    ]
    for task in tasks:
        print(f"judging {task} …", file=sys.stderr, flush=True)
        parts.append(task_section(load_embeddings(task), range(n_seeds)))
    if "cola" in tasks:
        parts.append(exact_section(load_embeddings("cola")))
    return "\n\n".join([*parts, f"Measured with {setting}."])


def _mean_sd(values: NDArray[np.float64]) -> str:
    if not values.any():
        return "0"
    digits = 4 if abs(values.mean()) < 0.01 else 3
    mean = f"{values.mean():.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std(ddof=1):.{digits}f}"


def _yes(holds: bool | np.bool) -> str:
    return "yes" if holds else "**no**"


def main(arguments: list[str] | None = None) -> int:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings_table")
    parser.add_argument("--seeds", type=int, default=5, help="fits of each row that has a seed")
    parser.add_argument("--tasks", nargs="+", choices=stored_tasks(), metavar="TASK")
    parser.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    options = parser.parse_args(arguments)
    tasks = options.tasks or stored_tasks()
    if not tasks:
        print("no stored embeddings: set ISOADAPT_SHARED to the folder that holds embeddings/")
        return 0
    text = report(tasks, options.seeds)
    print(text)
    if options.write is not None:
        replace_section(options.write, "embeddings", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
