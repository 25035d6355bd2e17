"""Base class of all adapters: validation of input, heads, predictions and tags."""

from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import ClassifierTags, RegressorTags, Tags, check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from isoadapt import metrics
from isoadapt._utils.containers import as_matrix
from isoadapt._utils.sklearn_private import HasMethods, StrOptions, _check_n_features, _fit_context
from isoadapt._utils.state import own_state
from isoadapt._utils.threads import few_rows_in_one_thread
from isoadapt.adapters._docstrings import fill_docstring
from isoadapt.adapters._heads import PROBES, fit_head, needs_fit, read_targets
from isoadapt.adapters._maps import Affine, Floats, Map, map_block, map_rows
from isoadapt.adapters._rows import Sample, check_frequencies, restore_on_failure
from isoadapt.geometry._chunks import is_dask, map_blocks, refuse_chunks
from isoadapt.heads import LinearHead
from isoadapt.metrics._points import codes_of

_Fit = TypeVar("_Fit", bound=Callable[..., Any])

# In signatures of public methods, ArrayLike is quoted: help() would otherwise show the whole union.


def fit_method(fit: _Fit) -> _Fit:
    """Decorate a fit: it checks parameters first, and changes nothing if it raises."""
    guarded = restore_on_failure(own_state()(few_rows_in_one_thread(fit)))
    return _fit_context(prefer_skip_nested_validation=True)(guarded)


def _has_head(adapter: "BaseAdapter") -> bool:
    if adapter._head is None:
        raise AttributeError(
            f"{type(adapter).__name__} has no predictions without a head: set head, fit it again"
        )
    return True


def _has_classifier(adapter: "BaseAdapter") -> bool:
    if adapter._head_kind() != "classifier":
        raise AttributeError(f"head={adapter._head!r} is not a classifier")
    return True


def make_random_state(random_state: Any) -> np.random.RandomState:
    """Return a generator; None draws a new seed, without using NumPy's global generator."""
    if random_state is None:
        random_state = int(np.random.default_rng().integers(2**31))
    return check_random_state(random_state)


class BaseAdapter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of all adapters; a subclass sets ``map_`` and ``head_`` in ``fit``."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "head": [StrOptions({"auto", *PROBES}), HasMethods(["fit", "predict"]), None]
    }

    head: Any
    map_: Map
    head_: LinearHead | None
    n_features_in_: int
    _auto_head: ClassVar[str | None] = None  # what head="auto" is for matrices
    _affine: ClassVar[bool] = True  # whether map_ is affine
    _invertible: ClassVar[bool] = True  # whether map_ has an inverse
    _keeps_predictions: ClassVar[bool] = False  # whether a frozen head predicts the same as before
    _poor_score: ClassVar[bool] = False  # whether it may remove what separates the classes
    _needs_teacher: ClassVar[bool] = False  # whether y of ``fit`` holds vectors of another encoder

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = (vars(base).get("_parameter_constraints", {}) for base in cls.__mro__)
        cls._parameter_constraints = dict(ChainMap(*own))  # inherited as the parameters are
        fill_docstring(cls)

    @own_state()
    def transform(self, X: "ArrayLike") -> Any:
        """Adapt embeddings (n_samples, n_features) to (n_samples, n_features_out).

        They are computed in float64, and returned in float32 if X is float32. For a dask array, the
        result is a lazy dask array. For other kinds of chunks, use ``(adapter.transform(chunk) for
        chunk in chunks)``: an iterable of chunks, or a set of moments, raises TypeError.
        """
        if is_dask(X):
            check_is_fitted(self)
            _check_n_features(self, X, reset=False)
            return map_blocks(X, map_block, self.map_, self._n_features_out)
        rows = self._check_rows(X)
        return map_rows(self.map_, rows, rows.dtype)

    @available_if(lambda self: self._invertible)
    @own_state()
    def inverse_transform(self, X: "ArrayLike") -> NDArray[Any]:
        """Map adapted embeddings (n_samples, n_features_out) back to embeddings.

        If the map is singular, they are the preimages of smallest norm. ValueError is raised if X
        does not have as many features as the adapted embeddings.
        """
        check_is_fitted(self)
        rows = check_array(as_matrix(X), dtype=[np.float64, np.float32], estimator=self)
        if rows.shape[1] != self._n_features_out:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__}.transform returns "
                f"{self._n_features_out}: pass adapted embeddings, as returned by transform"
            )
        return map_rows(cast(Any, self.map_).inverted(), rows, rows.dtype)

    @available_if(lambda self: self._affine)
    def to_affine(self) -> Affine:
        """Return the fitted map z = Ah + c, a named tuple of the matrix A and the offset c."""
        check_is_fitted(self)
        return cast(Affine, self.map_)

    @property
    def classes_(self) -> NDArray[Any]:
        """Class labels of shape (n_classes,) in the head's order, if the head is a classifier."""
        _has_classifier(self)
        return cast(Any, self.head_).classes_

    @available_if(_has_head)
    @own_state()
    def predict(self, X: "ArrayLike") -> NDArray[Any]:
        """Predict labels or values (n_samples,) or (n_samples, n_outputs) with the head.

        X are embeddings (n_samples, n_features) before adaptation, here and in the other methods.
        A multi-label head gives an indicator matrix. TeacherReadout applies the head to its own
        input, the first columns of X, in all methods.
        """
        return self._ask_head("predict", X)

    @available_if(_has_classifier)
    @own_state()
    def predict_proba(self, X: "ArrayLike") -> Floats:
        """Predict probabilities (n_samples, n_classes), in the order of ``classes_``.

        They are the softmax of the head's logits on the adapted embeddings or, of a multi-label
        head, the sigmoids.
        """
        return self._ask_head("predict_proba", X)

    @available_if(_has_classifier)
    @own_state()
    def predict_log_proba(self, X: "ArrayLike") -> Floats:
        """Predict the logarithms (n_samples, n_classes) of :meth:`predict_proba`."""
        return self._ask_head("predict_log_proba", X)

    @available_if(_has_classifier)
    @own_state()
    def decision_function(self, X: "ArrayLike") -> Floats:
        """Compute the head's logits (n_samples, n_classes) on the adapted embeddings.

        For two classes, the result is the second logit minus the first, of shape (n_samples,).
        """
        return self._ask_head("decision_function", X)

    @own_state()
    def score(
        self, X: "ArrayLike", y: "ArrayLike | None" = None, sample_weight: "ArrayLike | None" = None
    ) -> float:
        """Compute accuracy or R² of the head on the adapted embeddings.

        `y` (n_samples,) or (n_samples, n_outputs) are the true labels or values, and
        `sample_weight` (n_samples,) their weights. Without a head, the score is the IsoScore of the
        adapted embeddings, whatever these are. It is too high on rows that the adapter was fitted
        to, especially if they are few. ValueError is raised if there is a head and y is None.
        """
        if self._head is None:
            return metrics.isoscore(map_rows(self.map_, self._check_rows(X)))
        if y is None:
            raise ValueError("y=None, but the score of a head requires y: pass labels or values")
        return self._ask_head("score", X, y, sample_weight)

    @property
    def head_map_(self) -> Map:
        """The map from embeddings to what the head reads: `map_` in all but TeacherReadout."""
        return self.map_

    def _ask_head(self, method: str, X: ArrayLike, *args: Any) -> Any:
        """Call a method of the head with what it reads of embeddings."""
        rows = self._check_rows(X)  # first, because an unfitted adapter has no head_
        return getattr(self.head_, method)(map_rows(self.head_map_, rows), *args)

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        example = "(adapter.transform(chunk) for chunk in chunks)"
        refuse_chunks(X, f"chunks must be passed one at a time, as in {example}")
        X = as_matrix(X)
        return validate_data(self, X, dtype=[np.float64, np.float32], order="C", reset=False)

    @property
    def _head(self) -> Any:
        """The parameter `head`, without "auto", which AdaptedEncoder replaces if it can."""
        return self._auto_head if self.head == "auto" else self.head

    # --- fitting -----------------------------------------------------------------------------

    def _check_fit_input(
        self, X: ArrayLike, y: ArrayLike | None, reset: bool = True, **options: Any
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Validate X and, if the head requires it, y; `options` are passed to `check_array`."""
        refuse_chunks(X, f"{type(self).__name__} needs all rows at once")
        X, numeric = as_matrix(X), self._head_kind() == "regressor"
        options = {
            "dtype": [np.float64, np.float32],
            "order": "C",
            "ensure_min_samples": 2,
            "ensure_min_features": 2 if reset else 1,
            "reset": reset,
            **options,
        }
        if not self._needs_y() or y is None:
            unused = None if self._needs_y() else "no_validation"
            return validate_data(self, X, y=unused, **options), None
        y, several = read_targets(self._head, y, numeric)
        return validate_data(self, X, y, multi_output=several, y_numeric=numeric, **options)

    def _read_rows(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Sample:
        """Validate the rows of a fit, with their weights and groups."""
        rows, targets = self._check_fit_input(X, y)
        weights = check_frequencies(sample_weight, rows)
        codes = None if groups is None else codes_of(groups, len(rows), "groups")[1]
        return Sample(rows, targets, codes, weights)

    def _resolve_head(self, rows: Sample) -> LinearHead | None:
        """Return the frozen head; a name or an estimator that is not frozen is fitted first."""
        if self._head is None:
            return None
        if needs_fit(self._head):
            return self._fit_head(rows)
        head = LinearHead.from_estimator(self._head)
        head._check_width(rows.X.shape[1])
        return head

    def _fit_head(self, rows: Sample, map_: Any = None) -> LinearHead:
        """Fit the head; a frozen one is replaced by a probe of the same kind."""
        own = None if needs_fit(self._head) else LinearHead.from_estimator(self._head)
        head = self._head if own is None else "ridge" if own.classes_ is None else "logistic"
        X, y, groups, weights = rows
        probe = fit_head(head, X, cast(NDArray[Any], y), weights, groups, map_)
        named = own is not None and own.multi_label_
        return cast(LinearHead, own)._with(probe.coef_, probe.intercept_) if named else probe

    def _refits_head(self) -> bool:
        """Whether ``head_`` is fitted to the adapted embeddings."""
        return self._head is not None and getattr(self, "head_training", None) == "refit"

    def _set_fitted(self, map_: Map, head: LinearHead | None, **others: Any) -> Self:
        self.map_, self.head_ = map_, head
        self.__dict__.update(others)
        self.__dict__.pop("_reference", None)  # set by load_adapter, for its vectors only
        self._n_features_out = map_.n_features_out
        return self

    # --- tags --------------------------------------------------------------------------------

    def _head_kind(self) -> str | None:
        """Return "classifier", "regressor" or None, according to the parameters."""
        if self._head is None:
            return None
        if isinstance(self._head, str):
            return PROBES.get(self._head)
        return get_tags(self._head).estimator_type

    def _needs_y(self) -> bool:
        """Whether ``fit`` uses y."""
        return self._head is not None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = kind = self._head_kind()
        tags.target_tags.required = self._needs_y()
        if kind == "classifier":
            own = ClassifierTags(multi_label=True) if isinstance(self._head, str) else None
            tags.classifier_tags = own or cast(Any, get_tags(self._head).classifier_tags)
            tags.classifier_tags.poor_score = self._poor_score
        elif kind == "regressor":
            tags.regressor_tags = RegressorTags(poor_score=self._poor_score)
            tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
