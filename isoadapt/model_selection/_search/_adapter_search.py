"""Grid search over adapters that encodes texts once and trains its candidates together."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, indexable
from tqdm import tqdm

from isoadapt._utils.containers import as_values
from isoadapt._utils.messages import shows_progress, warn
from isoadapt._utils.sklearn_private import (
    Interval,
    _fit_context,
    _insert_error_scores,
    _warn_or_raise_about_fit_failures,
)
from isoadapt._utils.state import own_state
from isoadapt.adapters._rows import restore_on_failure
from isoadapt.encoders._kept import encodings_kept
from isoadapt.model_selection._result_cache import (
    ResultCache,
    check_seed,
    read_result,
    write_result,
)
from isoadapt.model_selection._search._best_above_floor import BestAboveFloor
from isoadapt.model_selection._search._evaluation import (
    Fit,
    FitData,
    Outcome,
    evaluate,
    keeps_encodings,
)
from isoadapt.model_selection._search._leading_encoder import Candidate, make_candidate


class AdapterSearchCV(GridSearchCV):
    """Grid search over adapters that encodes texts once and trains candidates together.

    It behaves like :class:`sklearn.model_selection.GridSearchCV` but is faster. Candidates whose
    adapters differ only in numbers, such as ``lam``, ``zeta``, ``alpha``, ``smoothing``, ``lr``,
    ``weight_decay`` or ``random_state``, are trained as members of one network, on as many folds at
    once as fit in memory. Up to rounding, each gives the same result as if it were fitted alone.

    Parameters
    ----------
    estimator : estimator
        A penalised adapter, such as :class:`~isoadapt.IStarAdapter`, a pipeline that ends in one,
        or an :class:`~isoadapt.AdaptedEncoder`. Other adapters are fitted one at a time.

        An AdaptedEncoder, or a pipeline that begins with a :class:`~isoadapt.TransformerEncoder` or
        an encoder of your own with the method ``head``, encodes all texts once, outside the folds:
        the embedding of a text must depend on that text alone. The head of an AdaptedEncoder is
        chosen by all labels of the search, as in its ``fit``. With a teacher, or a
        LogitPreservingWhitening that takes general sentences, it is fitted whole, one fit at a
        time, but each text is encoded once, and candidates with the same encoders share the
        alignment of each fold.

        All other steps are fitted within each fold, including those that scikit-learn treats as
        stateless, because a ``FunctionTransformer`` may mix rows. An encoder behind such a step
        encodes again in every fit; give it a cache. Candidates with ``random_state=None`` that are
        trained together share a seed in each fold; GridSearchCV draws one for each fit.
    param_grid : dict or list of dict
        Parameters to try, as for GridSearchCV.
    scoring : str, callable, list, tuple or dict, default=None
        As for GridSearchCV; see :func:`make_isotropy_scorer`. A callable receives the estimator
        without the leading encoder, and embeddings instead of texts; of an AdaptedEncoder, it is
        the adapter, unless it is fitted whole. None is the estimator's own ``score``.
    n_jobs : int, default=None
        Number of processes, as for GridSearchCV. Each trains blocks of candidates together;
        candidates that differ in more than numbers are in different blocks. With a single process,
        and always on a GPU or if an AdaptedEncoder is fitted whole, they are trained in this
        process with torch's threads.
    refit : bool, str or callable, default=True
        As for GridSearchCV; see :class:`BestAboveFloor`.
    cv : int, cross-validation generator or iterable, default=5
        Folds, stratified for classifiers.
    verbose : int, default=0
        Above 0, show a progress bar on a terminal, which moves at the end of each block.
    pre_dispatch : int or str, default="2*n_jobs"
        Number of blocks that are dispatched to the processes in advance.
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
        Folder for the results of finished blocks, from which the same call resumes a search that
        was stopped. Results are computed again if the data or parameters change, or the files that
        define classes and functions of yours. Changes of files that these import or read are not
        noticed: empty the folder. Restart Python after editing a file that has been imported. For a
        class or function of a script or notebook, its own lines count; if Python cannot find them,
        a warning says so, and the results are not kept. The cache requires integer random states
        of the adapter, of the other steps and of a splitter that shuffles. The files are pickles:
        use only folders that you trust.

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
    Candidates that are trained together are completed together, in blocks: all candidates on one or
    several folds or, if they do not fit in memory, a part of them on one fold. A block that is
    interrupted is lost. A search that goes on from a folder gives the same scores, up to rounding.
    It does not repeat warnings, and does fits again that failed or have scores that are not finite.

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
    @own_state(outputs=False)  # the best estimator may be fitted to tables
    def fit(self, X: Any, y: ArrayLike | None = None, **params: Any) -> Self:
        """Run the search and fit the best candidate to all rows.

        X are texts or pairs of texts for an encoder, or embeddings (n_samples, n_features), and y
        labels or values. `params` are for the splitter (``groups``), the scorer and the estimator,
        as for GridSearchCV. ValueError is raised if no fit succeeds, or if ``scoring`` is None and
        the candidates have scores of different metrics, for example accuracy and R².
        KeyboardInterrupt is raised if the search is interrupted before the first candidate is
        complete, or while the best one is fitted again. With ``cache``, finished blocks are kept.
        The search itself is left as it was.
        """
        scorers, metric = self._get_scorers()
        if isinstance(self.refit, BestAboveFloor) and hasattr(scorers, "_scorers"):
            self.refit._check_names(list(scorers._scorers))
        X, y = indexable(X, y)
        if "groups" in params:
            params["groups"] = as_values(params["groups"], "groups")
        routed = self._get_routed_params_for_fit(params)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        folds = list(splitter.split(X, y, **routed.splitter.split))
        candidates = self._make_candidates(y)
        if not (folds and candidates):
            raise ValueError(
                f"there is nothing to fit: cv gives {len(folds)} folds, and param_grid has "
                f"{len(candidates)} candidates"
            )
        if self.scoring is None:
            _check_same_score(candidates)
        if self.cache is not None:
            _check_seeds(self.cache, splitter, candidates)
        options = {
            "scorer": scorers,
            "fit_params": routed.estimator.fit,
            "score_params": routed.scorer.score,
            "return_train_score": self.return_train_score,
            "return_times": True,
            "error_score": self.error_score,
            "parameters": None,  # the estimators have them
            "verbose": 0,
        }
        self._encoded: dict[Hashable, tuple[Pipeline, Any]] = {}
        keeps = any(keeps_encodings(candidate.rest) for candidate in candidates)
        with encodings_kept() if keeps else nullcontext():
            results = self._search(candidates, FitData(X, y, folds, options))
            _warn_or_raise_about_fit_failures(results, self.error_score)
            _insert_error_scores(results, self.error_score)
            self.scorer_, self.n_splits_ = getattr(scorers, "_scorers", scorers), len(folds)
            self._set_results(results, metric)
            if self.refit:
                before = time.perf_counter()
                best = candidates[self.best_index_]
                encoder, rows = self._encode(best, X, y)
                best.rest.fit(rows, y, **routed.estimator.fit)
                self.best_estimator_ = best.put_together(encoder)
                self.refit_time_ = time.perf_counter() - before
                if hasattr(self.best_estimator_, "feature_names_in_"):
                    self.feature_names_in_ = self.best_estimator_.feature_names_in_
        del self._encoded
        return self

    def _make_candidates(self, y: Any) -> list[Candidate]:
        """Return the candidates, before any work is done; each warning about them is given once."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            grid = ParameterGrid(self.param_grid)
            found = [make_candidate(self.estimator, parameters, y) for parameters in grid]
        for message, category in {str(each.message): each.category for each in caught}.items():
            warn(message, category)
        return found

    def _encode(self, candidate: Candidate, X: Any, y: Any) -> tuple[Pipeline | None, Any]:
        """Return the encoder of a candidate, fitted, and what it gives; the last one is kept."""
        if candidate.encoder is None:
            return None, X
        if candidate.key not in self._encoded:
            self._encoded.clear()  # first, so that only one copy is held
            rows = candidate.encoder.fit_transform(X, y)
            self._encoded[candidate.key] = candidate.encoder, rows
        return self._encoded[candidate.key]

    def _search(self, candidates: Sequence[Candidate], data: FitData) -> list[dict[str, Any]]:
        """Results of all fits, in the order of scikit-learn: by candidate, then by fold."""
        fits = [Fit(*each) for each in np.ndindex(len(candidates), len(data.folds))]
        groups: dict[Hashable, dict[int, Any]] = {}
        for number, candidate in enumerate(candidates):
            groups.setdefault(candidate.key, {})[number] = candidate.rest
        done: dict[Fit, Outcome] = {}
        hidden = not shows_progress(self.verbose)
        settings = self.n_jobs, self.pre_dispatch, self.max_memory
        try:
            with tqdm(total=len(fits), unit=" fits", desc="Searching", disable=hidden) as bar:
                for own in groups.values():
                    rows = self._encode(candidates[min(own)], data.X, data.y)[1]
                    given = replace(data, X=rows)
                    files = _files(self.cache, given, own)
                    saved = {fit: read_result(file, Outcome) for fit, file in files.items()}
                    done |= {fit: outcome for fit, outcome in saved.items() if outcome}
                    bar.update(len(done) - bar.n)
                    for fit, outcome in evaluate(given, own, done, *settings):
                        done[fit] = outcome
                        bar.update()
                        if fit in files and outcome.is_complete():
                            write_result(files[fit], outcome)
        except KeyboardInterrupt:
            _stop_early(done, fits, self.cache)
        self.unbatched_ = dict(Counter(each.reason for each in done.values() if each.reason))
        for reason, count in self.unbatched_.items():
            warn(
                f"{count} of {len(fits)} fits could not be trained together and were done one at a "
                f"time: {reason}"
            )
        return [done[fit].result for fit in fits]

    def _set_results(self, results: list[dict[str, Any]], metric: Any) -> None:
        """Set the attributes of GridSearchCV that depend on the scores alone."""
        first = results[0]["test_scores"]
        self.multimetric_ = isinstance(first, dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(first)
            metric = self.refit
        parameters = list(ParameterGrid(self.param_grid))
        self.cv_results_ = found = self._format_results(parameters, self.n_splits_, results)
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, metric, found)
            self.best_params_ = found["params"][self.best_index_]
            if not callable(self.refit):
                self.best_score_ = found[f"mean_test_{metric}"][self.best_index_]


def _files(folder: Any, data: FitData, estimators: Mapping[int, Any]) -> dict[Fit, Path]:
    """Return the file of each fit in the folder of a cache, or none."""
    if folder is None:
        return {}
    cache = ResultCache(Path(folder), data, "the search")
    fits = [Fit(number, fold) for number in estimators for fold in range(len(data.folds))]
    files = ((fit, cache.file(fit.fold, estimators[fit.candidate], "a candidate")) for fit in fits)
    return {fit: file for fit, file in files if file}


def _check_same_score(candidates: Sequence[Candidate]) -> None:
    """Raise ValueError if the default scores of the candidates are different metrics."""
    kinds = {str(get_tags(candidate.rest).estimator_type) for candidate in candidates}
    if len(kinds) > 1:
        raise ValueError(
            f"the candidates in param_grid are of different kinds ({', '.join(sorted(kinds))}), so "
            "that their default scores are different metrics: pass a scoring= that all have, such "
            "as make_isotropy_scorer(), or search one kind at a time"
        )


def _check_seeds(cache: Any, splitter: Any, candidates: Sequence[Candidate]) -> None:
    """Raise ValueError if a random state is not an integer."""
    if getattr(splitter, "shuffle", True) and hasattr(splitter, "random_state"):
        check_seed(cache, splitter.random_state, "cv.random_state")
    for candidate in candidates:
        for name, value in candidate.rest.get_params().items():
            steps, _, last = name.rpartition("__")
            if last == "random_state" and "__" not in steps and "head" not in steps:
                check_seed(cache, value, name)


def _stop_early(done: dict[Fit, Outcome], fits: Sequence[Fit], cache: Any) -> None:
    """Fill in NaN scores for the candidates that are not complete on every fold, and warn."""
    missing = {fit.candidate for fit in fits if fit not in done}
    complete = [outcome.result for fit, outcome in done.items() if fit.candidate not in missing]
    resume = "" if cache is None else f"; the same call resumes from cache={str(cache)!r}"
    if not complete:
        advice = resume or "; with cache='folder', finished blocks would have been kept"
        raise KeyboardInterrupt(f"the search was interrupted before a candidate was done{advice}")
    example = next((each for each in complete if each["fit_error"] is None), complete[0])
    blank: dict[str, Any] = {"fit_error": None}
    for name in example.keys() - blank:
        value = example[name]
        blank[name] = dict.fromkeys(value, np.nan) if isinstance(value, dict) else np.nan
    done |= {fit: Outcome(blank) for fit in fits if fit.candidate in missing}
    n_candidates = 1 + fits[-1].candidate
    warn(
        f"the search was interrupted: {n_candidates - len(missing)} of {n_candidates} candidates "
        f"are done, the others have NaN scores; the best of those done is chosen{resume}"
    )
