"""Comparison of adapters on a task and on other uses of the vectors, with tests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.parallel import Parallel, delayed
from tqdm import tqdm

from isoadapt._utils.messages import shows_progress, warn
from isoadapt._utils.state import own_state
from isoadapt.adapters._base import make_random_state
from isoadapt.model_selection._compare._comparison import Comparison
from isoadapt.model_selection._compare._data import Data, make_data
from isoadapt.model_selection._compare._measure import Measurement, Measurements, measure
from isoadapt.model_selection._compare._methods import ADAPTER, ComparedMethod, make_methods
from isoadapt.model_selection._compare._plan import Split, make_plan
from isoadapt.model_selection._compare._table import make_rows
from isoadapt.model_selection._compare._uses import Use
from isoadapt.model_selection._result_cache import (
    ResultCache,
    check_seed,
    read_result,
    write_result,
)

INTERRUPTED = "the comparison was interrupted"  # beginning of the note on it


@own_state()
def compare_adapters(
    X: ArrayLike,
    y: ArrayLike,
    adapters: Any = "fast",
    *,
    head: Any = "logistic",
    cv: Any = 5,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    encoder_saw: bool | ArrayLike | None = None,
    groups: ArrayLike | None = None,
    groups_test: ArrayLike | None = None,
    uses: Sequence[Use] = (),
    teacher: Mapping[str, Any] | None = None,
    n_jobs: int | None = None,
    random_state: Any = None,
    verbose: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Compare adapters with no adapter and with controls, on a task and on other uses.

    There are two protocols. With `X_test`, every adapter is fitted to X and judged on the test
    rows. Without it, the task is judged by a repeated cross-validation on X. These uses
    are judged:

    - the task: accuracy of a classifier, or R² of a regressor;
    - "neighbours": share of the 10 nearest judged rows that are of the same class, for classifiers;
    - those in `uses`: "similarity", "search", "outliers", or others that you define;
    - "index", with a `teacher`: as "search", of queries by the classifier among its documents.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Labels, or values for a regression.
    adapters : str, estimator, list or dict, default="fast"
        "fast" are the adapters in closed form or with an exact solver, except AllButTheTop and
        ClusterIsotropy, which remove the direction of the classes; "all" adds these and those that
        are trained by mini-batches, FlowAdapter if zuko is installed.
        Otherwise a name, an estimator with ``fit`` and ``transform``, a list of both, or a dict of
        estimators by name. `head` replaces the head of every adapter. Transformers without a head
        are followed by one that is fitted to their output.
    head : LinearHead, linear estimator or {"logistic", "ridge"}, default="logistic"
        The head of all rows, as in :class:`~isoadapt.IsotropyLayer`: a checkpoint's, or one that
        is fitted to the training rows. It decides whether the task is a classification.
    cv : int, splitter, iterable or None, default=5
        Number of folds, which are repeated 3 times with different shuffles, stratified for
        classifiers and grouped if `groups` are given or rows are equal; or a splitter, or pairs of
        row numbers (training rows, test rows), which are used as they are. None is 5 folds. Ignored
        with `X_test`.
    X_test : array-like of shape (n_test, n_features), default=None
        Embeddings to judge on, of rows that the encoder has not seen. Rows that equal one of X are
        left out with a warning.
    y_test : array-like of shape (n_test,) or (n_test, n_outputs), default=None
        Labels or values of `X_test`.
    encoder_saw : bool or array-like of bool of shape (n_samples,), default=None
        Whether the encoder was trained on the rows of X. True requires `X_test`. A mask without
        `X_test` makes the rows that the encoder saw the training rows, and judges on the others.
        With None, a warning says what the figures cannot tell.
    groups : array-like of shape (n_samples,), default=None
        Rows of one group, such as a sentence and its corrupted twin, share a fold and are one unit
        of the tests. Adapters whose ``fit`` takes groups get them.
    groups_test : array-like of shape (n_test,), default=None
        Groups of the rows of `X_test`, such as near copies or sentences of one document.
    uses : list of Similarity, Search, Outliers and other subclasses of Use, default=()
        Further uses of the vectors with their data, embedded like X. Several of one kind need
        different names.
    teacher : mapping of str to array-like of shape (n, n_teacher_features), default=None
        Vectors of another encoder, such as the base model, for the texts of "X" and of all other
        sets that are given: "X_test", "A", "B", "queries", "documents" and "foreign". The sets of a
        second use of the same kind are "NAME.A" and so on. "fast" and "all" then include
        :class:`~isoadapt.TeacherReadout`, which needs a frozen `head`. X and the other sets may
        have more columns than the head reads, which only TeacherReadout gets. The row "second pass"
        is the teacher's own vectors, with a head that is fitted to them.
    n_jobs : int, default=None
        Number of processes. The result does not depend on it, except for the seconds.
    random_state : int, RandomState instance or None, default=None
        Seed of the folds and of adapters whose own random state is None.
    verbose : int, default=0
        Above 0, show a progress bar on a terminal.
    cache : str or path-like, default=None
        Folder to keep the result of each fit in, under a name made from the content of the data and
        the parameters, and from the files that define classes and functions of yours, as for
        :class:`AdapterSearchCV`. A comparison that was stopped goes on from there. It requires an
        integer `random_state`. The files are pickles: use only folders that you trust.

    Raises
    ------
    ValueError
        If X was seen by the encoder and there are no other rows to judge on, if data do not fit
        together, or if an adapter is unknown.
    KeyboardInterrupt
        If the comparison is interrupted before the baseline and the controls are complete.

    Warns
    -----
    UserWarning
        If `encoder_saw` is None; if judged rows equal rows of the fits, or there are too few
        independent items to test differences; for the warnings of the fits and for adapters that
        are left out because a fit failed; and if the comparison was interrupted (Ctrl-C), which
        keeps the adapters that were complete.

    Notes
    -----
    An adapter is credited with a gain only if it is better than no adapter and than each of its
    controls, a refitted head and the same training without a penalty, at the level 0.05 after
    Holm's adjustment for all adapters of the use. The reference of "index" is the teacher.

    In a cross-validation, the task is tested by the corrected resampled t test. A difference of
    accuracies on test rows is tested by McNemar's exact test if fewer than ten predictions become
    right or wrong. All other scores and differences have a t test with the cluster-robust variance
    of each item's influence, whose degrees of freedom are estimated from fourth moments. Rows of
    one group, equal rows, and queries that are equal or have the same relevant documents are one
    unit; pairs that share a text depend on each other, as in Aronow et al. (2015). Near copies are
    not recognised: pass groups.
    :doc:`/guide/comparing` says which differences are not tested, and what the tests leave out.

    References
    ----------
    C. Nadeau and Y. Bengio (2003), "Inference for the Generalization Error". S. Holm (1979), "A
    Simple Sequentially Rejective Multiple Test Procedure". P. Aronow, C. Samii and V. Assenova
    (2015), "Cluster-Robust Variance Estimation for Dyadic Data".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt.model_selection import Outliers, compare_adapters
    >>> X, y = make_classification(100, 8, n_informative=5, random_state=0)
    >>> adapters, uses = ["Whitening", "LogitPreservingWhitening"], [Outliers(X + 9)]
    >>> comparison = compare_adapters(X, y, adapters, encoder_saw=False, uses=uses, random_state=0)
    >>> print(comparison.verdict("classify"))
    On classification, none of the adapters raised the accuracy, ... without one, beyond noise.
    >>> comparison.best_adapter("classify") is None
    True
    """
    if cache is not None:
        check_seed(cache, random_state)
    given = {"groups": groups, "groups_test": groups_test, "uses": uses, "teacher": teacher}
    data, n_fit = make_data(X, y, X_test, y_test, head=head, **given)
    of_one_label = data.task == "classify" and data.y.ndim == 1
    controls = dict.fromkeys(use._control for use in data.uses if of_one_label and use._control)
    methods = make_methods(adapters, head, data.task, teacher is not None, controls)
    seed = random_state
    if not isinstance(seed, int | np.integer):
        seed = make_random_state(random_state).randint(2**31 - 1000)
    splits, protocol = make_plan(data, n_fit, cv=cv, encoder_saw=encoder_saw, seed=int(seed))
    measured, notes = _run(methods, data, splits, n_jobs=n_jobs, verbose=verbose, cache=cache)
    done = [method for method in methods if method.name in measured]
    adapters = [method.name for method in done if method.kind == ADAPTER]
    fitted = {name: measured[name][-1].estimator for name in adapters}
    return Comparison(make_rows(done, measured, data, splits), protocol, fitted, notes)


def _run(
    methods: Sequence[ComparedMethod],
    data: Data,
    splits: Sequence[Split],
    *,
    n_jobs: int | None,
    verbose: int,
    cache: str | os.PathLike[str] | None,
) -> tuple[Measurements, list[str]]:
    """Measurements of each complete method on all splits, and notes about the others."""
    results = None if cache is None else ResultCache(Path(cache), data, "the data")
    fits = [(method, split) for method in methods for split in splits]
    files = [results and results.file(split, each, repr(each.name)) for each, split in fits]
    jobs = Parallel(n_jobs, return_as="generator")(
        delayed(_job)(*fit, data, file) for fit, file in zip(fits, files, strict=True)
    )
    found: list[Measurement] = []
    no_bar = not shows_progress(verbose)
    with (
        tqdm(total=len(fits), unit=" fits", desc="Comparing", disable=no_bar) as bar,
        suppress(KeyboardInterrupt),
    ):
        for measurement in jobs:
            found.append(measurement)
            bar.update()
    n = len(splits)
    return _complete(methods, [found[k : k + n] for k in range(0, len(fits), n)], n)


def _job(method: ComparedMethod, split: Split, data: Data, file: Path | None) -> Measurement:
    """Read a measurement from the cache, or measure and write it there."""
    found = None if file is None else read_result(file, Measurement)
    if found is None:
        found = measure(method, data, split)
        if file is not None and found.error is None:
            write_result(file, found)
    return found


def _complete(
    methods: Sequence[ComparedMethod], found: Sequence[Sequence[Measurement]], n: int
) -> tuple[Measurements, list[str]]:
    """Methods with n measurements, and notes about failures, interrupts and warnings of fits."""
    measured: Measurements = {}
    notes: list[str] = []
    missing = []
    for method, done in zip(methods, found, strict=True):
        errors = [each.error for each in done if each.error is not None]
        if len(done) < n:
            if method.kind != ADAPTER:
                raise KeyboardInterrupt
            missing.append(method.name)
        elif errors and method.kind != ADAPTER:
            raise ValueError(
                f"{method.name!r}, with which the adapters are compared, could not be fitted or "
                f"measured: {errors[0]}"
            )
        elif errors:
            notes.append(
                f"{method.name} was left out: {len(errors)} of {n} fits failed, the first with "
                f"{errors[0]}"
            )
        else:
            measured[method.name] = [replace(each, messages=()) for each in done]
            for message, count in Counter(said for each in done for said in each.messages).items():
                notes.append(f"{method.name}: {message} (in {count} of {n} fits)")
    if missing:
        notes.append(f"{INTERRUPTED} before these were done: {', '.join(missing)}")
    for note in notes:
        warn(note)
    return measured, notes
