"""Grid search over adapters that encodes texts once and trains its candidates together."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, _fit_context, clone, is_classifier
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.model_selection._validation import (
    _insert_error_scores,
    _warn_or_raise_about_fit_failures,
)
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, indexable
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_method_params, _num_samples
from tqdm import tqdm

from isoadapt._utils.messages import warn
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters._rows import restore_on_failure
from isoadapt.model_selection._result_cache import ResultCache, check_seed
from isoadapt.model_selection._search._best_above_floor import BestAboveFloor
from isoadapt.model_selection._search._evaluation import Evaluation, Fit, FitData, Result
from isoadapt.model_selection._search._leading_encoder import LeadingEncoder, leading_encoder

_SCORES = {
    "classifier": "accuracy",
    "regressor": "R²",
    None: "the score of an estimator without a head",
}
_NOT_BATCHED = "{} of {} fits could not be trained together and were done one at a time: {}"


class AdapterSearchCV(GridSearchCV):
    """Grid search over adapters that encodes texts once and trains candidates together.

    It behaves like :class:`sklearn.model_selection.GridSearchCV` but is faster. Candidates whose
    adapters differ only in numbers, such as ``lam``, ``zeta``, ``alpha``, ``smoothing``, ``lr``,
    ``weight_decay`` or ``random_state``, are trained as members of one network, on as many folds at
    once as fit in memory. Up to rounding, each gives the same result as if it were fitted alone.
    Early stopping removes finished members.

    Parameters
    ----------
    estimator : estimator
        A penalised adapter, such as :class:`~isoadapt.IStarAdapter`, a pipeline that ends in one,
        or an :class:`~isoadapt.AdaptedEncoder`. A leading :class:`~isoadapt.TransformerEncoder`
        encodes all texts once, outside the folds, because the embedding of a text depends on that
        text alone; so does the encoder of an AdaptedEncoder, whose head is chosen by all labels of
        the search, as in its ``fit``. All other steps are
        fitted within each fold, including those that scikit-learn treats as stateless, because a
        ``FunctionTransformer`` may mix rows. An encoder behind such a step encodes again in every
        fit; give it a cache. Other adapters are admissible and are fitted one at a time.
    param_grid : dict or list of dict
        Parameters to try, as for GridSearchCV.
    scoring : str, callable, list, tuple or dict, default=None
        As for GridSearchCV; see :func:`make_isotropy_scorer`. A callable receives the estimator
        without the leading encoder, and embeddings instead of texts; of an AdaptedEncoder, it is
        a pipeline with the adapter alone. None is the estimator's own ``score``.
    n_jobs : int, default=None
        Number of processes, as for GridSearchCV. Each trains blocks of candidates together;
        candidates that differ in more than numbers are in different blocks. With a single process,
        for a single block, and always on a GPU, they are trained in this process with torch's
        threads.
    refit : bool, str or callable, default=True
        As for GridSearchCV; see :class:`BestAboveFloor`.
    cv : int, cross-validation generator or iterable, default=5
        Folds, stratified for classifiers.
    verbose : int, default=0
        Above 0, show a progress bar on a terminal; with several processes it moves at the end of
        each block. Above 1, also print scikit-learn's messages about fits that are done one at a
        time.
    pre_dispatch : int or str, default="2*n_jobs"
        Number of blocks and fits that are dispatched to the processes in advance.
    error_score : "raise" or float, default=nan
        Score of a fit that fails.
    return_train_score : bool, default=False
        Whether to compute scores on the training rows too.
    max_memory : int, default=None
        Estimated number of bytes that joint training may use at a time in each process, without
        the embeddings and the copies of the training folds. None is 2 GiB, or half of the free
        memory of a GPU. On a CPU fewer members than fit in memory are trained together if that is
        faster.
    cache : str or path-like, default=None
        Folder to keep the results of finished blocks in, under names made from the content of the
        data and the parameters. A search that was stopped goes on from there, if the same call is
        made again with the same number of processes. It requires integer random states of the
        adapter, of the other steps and of a splitter that shuffles. The files are pickles: use only
        folders that you trust.

    Attributes
    ----------
    cv_results_ : dict of ndarrays
        As for GridSearchCV. The ``mean_fit_time`` of candidates that were trained together is
        their share of the common time.
    best_estimator_ : estimator
        Best candidate, fitted to all rows and including the leading encoder. This attribute and
        ``best_params_``, ``best_score_``, ``best_index_``, ``scorer_``, ``n_splits_``,
        ``refit_time_`` and ``multimetric_`` are those of GridSearchCV.
    unbatched_ : dict of str to int
        Number of fits that were done one at a time, by reason.

    Warns
    -----
    UserWarning
        If fits were done one at a time, or if the search was interrupted. After Ctrl-C the search
        ends with the candidates whose blocks are finished on every fold, and the others have NaN
        scores.

    Notes
    -----
    Candidates that are trained together are completed together, in blocks. A block has all
    candidates on one or several folds or, if they do not fit in memory, a part of them on one fold.
    Several processes share the candidates out. A block that is interrupted is lost; finished ones
    are kept for later calls only with ``cache``. On the same machine, with the same ``n_jobs`` and
    number of threads, the scores of a search that goes on from a folder are those of a search that
    was not interrupted, to the last bit; the times are not. Warnings of fits that are read from the
    folder are not repeated, and fits that fail or whose scores are not finite are done again.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import IStarAdapter
    >>> from isoadapt.model_selection import AdapterSearchCV
    >>> X, y = make_classification(200, 10, n_informative=6, random_state=0)
    >>> adapter = IStarAdapter(max_epochs=3, random_state=0)
    >>> search = AdapterSearchCV(adapter, {"lam": [-1, 1], "zeta": [0.2, 0.8]}, cv=3).fit(X, y)
    >>> len(search.cv_results_["params"]), search.unbatched_
    (4, {})
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GridSearchCV._parameter_constraints,
        "max_memory": [Interval(Integral, 1, None, closed="left"), None],
        "cache": [str, os.PathLike, None],
    }

    def __init__(
        self,
        estimator: BaseEstimator,
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        *,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = 5,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        max_memory: int | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            estimator,
            param_grid,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.max_memory = max_memory
        self.cache = cache

    @_fit_context(prefer_skip_nested_validation=False)
    @restore_on_failure
    def fit(self, X: Any, y: ArrayLike | None = None, **params: Any) -> Self:
        """Run the search and fit the best candidate to all rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or sequence of str or of pairs
            Input of the estimator: texts or pairs of texts for an encoder, embeddings for an
            adapter.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values.
        **params : dict
            Parameters for the splitter (``groups``), the scorer and the estimator, as for
            GridSearchCV.

        Returns
        -------
        AdapterSearchCV
            The fitted search.

        Raises
        ------
        ValueError
            If no fit succeeds, or if ``scoring`` is None and the candidates have scores of
            different metrics, for example accuracy and R². Candidates of an AdaptedEncoder are not
            compared before they are fitted.
        KeyboardInterrupt
            If the search is interrupted before the first candidate is complete, or while the best
            one is fitted again. With ``cache``, finished blocks are kept. The search itself is
            left as it was before the call.
        """
        scorers, refit_metric = self._get_scorers()
        X, y = indexable(X, y)
        params = _check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        leading = leading_encoder(self.estimator)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        folds = list(splitter.split(X, y, **routed.splitter.split))
        candidates = list(ParameterGrid(self.param_grid))
        options = {
            "fit_params": leading.fit_params(routed.estimator.fit),
            "score_params": routed.scorer.score,
            "return_train_score": self.return_train_score,
            "error_score": self.error_score,
            "verbose": max(0, self.verbose - 1),
        }
        if not (folds and candidates):
            raise ValueError(
                f"there is nothing to fit: cv gives {len(folds)} folds, param_grid has "
                f"{len(candidates)} candidates; at least one of each is needed"
            )
        # Wrong names raise before any work is done.
        trials = [
            clone(self.estimator).set_params(**clone(parameters, safe=False))
            for parameters in candidates
        ]
        if self.scoring is None:
            _check_same_score(trials)
        if isinstance(self.refit, BestAboveFloor) and hasattr(scorers, "_scorers"):
            self.refit._check_names(list(scorers._scorers))
        self._check_cache(leading, candidates, splitter)
        data = FitData(leading.rest, X, y, folds, scorers, options)
        out = self._search(leading, candidates, data)
        _warn_or_raise_about_fit_failures(out, self.error_score)
        self._set_results(out, candidates, data, refit_metric)
        if self.refit:
            self._refit(leading, X, y, routed.estimator.fit)
        return self

    def _search(
        self, leading: LeadingEncoder, candidates: list[dict[str, Any]], data: FitData
    ) -> list[Result]:
        """Results of all fits, in the order of scikit-learn: by candidate, then by fold."""
        X, y, folds = data.X, data.y, data.folds
        n_fits = len(candidates) * len(folds)
        results: dict[Fit, Result] = {}
        unbatched: Counter[str] = Counter()
        no_bar = not (self.verbose and sys.stderr.isatty())
        try:
            with tqdm(total=n_fits, unit=" fits", desc="Searching", disable=no_bar) as bar:
                for numbers in leading.groups(candidates):
                    data = replace(data, X=leading.transform(candidates[numbers[0]], X, y))
                    evaluation = Evaluation(
                        data,
                        self.n_jobs,
                        self.pre_dispatch,
                        self.max_memory,
                        bar.update,
                        None if self.cache is None else _result_cache(self.cache, data),
                        results,
                        unbatched,
                    )
                    own = {}
                    for number in numbers:  # no comprehension: warnings name the caller
                        own[number] = leading.other_params(candidates[number], y)
                    evaluation.run(own)
        except KeyboardInterrupt:
            _stop_early(results, len(candidates), folds, self.cache)
        self.unbatched_ = dict(unbatched)
        for reason, count in unbatched.items():
            warn(_NOT_BATCHED.format(count, n_fits, reason))
        return [
            results[Fit(candidate, fold)]
            for candidate in range(len(candidates))
            for fold in range(len(folds))
        ]

    def _check_cache(
        self, leading: LeadingEncoder, candidates: list[dict[str, Any]], splitter: Any
    ) -> None:
        """Raise ValueError if there is a cache, but a random state is not an integer."""
        if self.cache is None:
            return
        if getattr(splitter, "shuffle", True) and hasattr(splitter, "random_state"):
            check_seed(self.cache, splitter.random_state, "cv.random_state")
        for parameters in candidates:
            own = clone(leading.split_params(parameters)[1], safe=False)
            for name, value in clone(leading.rest).set_params(**own).get_params().items():
                steps, _, last = name.rpartition("__")
                if last == "random_state" and "__" not in steps and "head" not in steps:
                    check_seed(self.cache, value, name)

    def _set_results(
        self, out: list[Result], candidates: list[dict[str, Any]], data: FitData, metric: Any
    ) -> None:
        """Set the attributes of GridSearchCV that depend on the scores alone."""
        if callable(self.scoring):
            _insert_error_scores(out, self.error_score)
        first = out[0]["test_scores"]
        self.multimetric_ = isinstance(first, dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(first)
            metric = self.refit
        self.n_splits_ = len(data.folds)
        self.cv_results_ = results = self._format_results(candidates, self.n_splits_, out)
        self.scorer_ = getattr(data.scorers, "_scorers", data.scorers)
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, metric, results)
            self.best_params_ = results["params"][self.best_index_]
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{metric}"][self.best_index_]

    def _refit(
        self, leading: LeadingEncoder, X: Any, y: Any, fit_params: Mapping[str, Any]
    ) -> None:
        before = time.perf_counter()
        self.best_estimator_ = leading.fit(self.best_params_, X, y, fit_params)
        self.refit_time_ = time.perf_counter() - before
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_


def _result_cache(folder: str | os.PathLike[str], data: FitData) -> ResultCache:
    """Return the cache of all fits to the same data; how much they print does not matter."""
    return ResultCache(
        Path(folder), replace(data, options={**data.options, "verbose": 0}), "the search"
    )


def _check_same_score(candidates: Sequence[BaseEstimator]) -> None:
    """Raise ValueError if the default scores of the candidates are different metrics."""
    last = (trial[-1] if isinstance(trial, Pipeline) else trial for trial in candidates)
    if any(isinstance(estimator, AdaptedEncoder) for estimator in last):
        return  # their checkpoint decides which score they have
    kinds = {get_tags(candidate).estimator_type for candidate in candidates}
    if len(kinds) > 1:
        metrics = ", ".join(sorted(_SCORES.get(kind, str(kind)) for kind in kinds))
        raise ValueError(
            "the default scores of the candidates in param_grid are different metrics "
            f"({metrics}): pass a scoring= that all have, such as make_isotropy_scorer(), or "
            "search one kind at a time"
        )


def _stop_early(
    results: dict[Fit, Result], n_candidates: int, folds: Sequence[Any], cache: Any
) -> None:
    """Fill in NaN scores for the candidates that are not complete on every fold, and warn."""
    grid = [[Fit(number, fold) for fold in range(len(folds))] for number in range(n_candidates)]
    complete = [fits for fits in grid if all(fit in results for fit in fits)]
    resume = "" if cache is None else f"; the same call resumes from cache={str(cache)!r}"
    if not complete:
        advice = resume or "; with cache='folder', finished blocks would have been kept"
        raise KeyboardInterrupt(
            f"the search was interrupted before a candidate was complete{advice}"
        )
    done = [results[fit] for fits in complete for fit in fits]
    example = next((result for result in done if result["fit_error"] is None), done[0])
    no_scores = {
        name: dict.fromkeys(value, np.nan) if isinstance(value, dict) else np.nan
        for name, value in example.items()
    }
    for fit in (fit for fits in grid if fits not in complete for fit in fits):
        n_test = _num_samples(folds[fit.fold][1])
        results[fit] = no_scores | {"fit_error": None, "n_test_samples": n_test}
    warn(
        f"the search was interrupted: {len(complete)} of {n_candidates} candidates are done, the "
        f"others have NaN scores; the best of those done is chosen{resume}",
        UserWarning,
    )
