"""Frozen linear heads: the last layer of a fine-tuned model, in scikit-learn's shape.

The parameter ``head`` of an adapter is one of the following.

- A :class:`LinearHead`, for example that of a checkpoint. It is used as it is.
- A fitted linear estimator in :class:`sklearn.frozen.FrozenEstimator`. It is used as it is.
- Any other linear classifier or regressor of scikit-learn, such as ``LogisticRegression(C=0.1)``
  or ``RidgeCV()``. A clone of it is fitted to the embeddings and then frozen, so its own
  parameters set the regularisation, and ``head__C`` can be searched.
- ``"logistic"`` or ``"ridge"``. The embeddings are standardised, ``LogisticRegression(C=1.0)`` or
  ``Ridge(alpha=1.0)`` is fitted to them, and the scaling is folded into the frozen head. The
  penalty therefore does not depend on the scale of the embeddings. To choose another strength,
  pass an estimator. Estimators are fitted to the embeddings without standardisation, and a
  Pipeline with a scaler is not accepted, because its weights are those of scaled embeddings.
- None, where the adapter needs no head.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, has_fit_parameter

from isoadapt._utils.devices import as_array
from isoadapt.geometry import dead_dimensions

__all__ = ["LinearHead", "MultiLabelHead", "fit_head", "needs_fit"]

_FLOOR = 1e-6  # of the mean variance: weights on features of less would be all but unbounded


def _is_classifier(head: LinearHead) -> bool:
    if head.classes_ is None:
        raise AttributeError("this LinearHead is a regressor (classes=None)")
    return True


class LinearHead(BaseEstimator):
    """A frozen linear classifier or regressor.

    It predicts like a scikit-learn estimator but is never trained: ``fit`` returns it as it is,
    :func:`sklearn.base.clone` shares it, and its arrays are read-only.

    Parameters
    ----------
    coef : array-like of shape (n_outputs, n_features)
        Weights W. A binary softmax head has two rows.
    intercept : array-like of shape (n_outputs,)
        Bias b.
    classes : array-like of shape (n_outputs,), default=None
        Label of each row, in any order; None makes a regressor.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_features)
        Weights in float64; the rows of a classifier are in the order of ``classes_``.
    intercept_ : ndarray of shape (n_outputs,)
        Bias in float64, in the same order.
    classes_ : ndarray of shape (n_outputs,) or None
        Labels of the rows, sorted as in every scikit-learn classifier; None for a regressor.
    n_features_in_ : int
        Width of the embeddings that the head reads.

    Raises
    ------
    ValueError
        If the shapes do not fit together, a value is not finite or a label stands twice.

    Examples
    --------
    >>> from isoadapt import LinearHead
    >>> head = LinearHead([[0.0, 0.0], [1.0, 0.0]], [0.0, -1.0], classes=["no", "yes"])
    >>> head
    LinearHead(n_features=2, classes=['no', 'yes'])
    >>> head.predict([[3.0, 0.0], [0.0, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    """

    def __init__(
        self, coef: ArrayLike, intercept: ArrayLike, classes: ArrayLike | None = None
    ) -> None:
        self.coef_: NDArray[np.float64] = check_array(
            as_array(coef), dtype=np.float64, copy=True, input_name="coef"
        )
        self.intercept_: NDArray[np.float64] = check_array(
            as_array(intercept),
            dtype=np.float64,
            copy=True,
            ensure_2d=False,
            input_name="intercept",
        )
        n_outputs, self.n_features_in_ = self.coef_.shape
        if self.intercept_.shape != (n_outputs,):
            raise ValueError(
                f"intercept has shape {self.intercept_.shape}, coef has {n_outputs} rows: give "
                "one intercept for each row"
            )
        self.classes_ = None if classes is None else np.array(classes)
        if self.classes_ is not None and (
            self.classes_.shape != (n_outputs,)
            or len(set(self.classes_.tolist())) < max(2, n_outputs)
        ):
            raise ValueError(
                f"classes={classes!r}, but coef has {n_outputs} rows: give as many different "
                "labels, two or more, or classes=None for a regressor"
            )
        self._sort_and_freeze()

    @classmethod
    def from_estimator(cls, estimator: Any) -> LinearHead:
        """Take over a fitted linear scikit-learn model.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``coef_`` and ``intercept_``; the decision values of a classifier are
            read as logits. May be wrapped in :class:`sklearn.frozen.FrozenEstimator`. The one
            row w of a binary model becomes the two rows -w/2 and w/2: same probabilities. A
            LinearHead is returned as it is.

        Returns
        -------
        LinearHead
            The same model.

        Raises
        ------
        ValueError
            If the estimator has no ``coef_``: it is not linear or not fitted.
        """
        estimator = estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
        if isinstance(estimator, cls):
            return estimator
        if not hasattr(estimator, "coef_"):
            raise ValueError(
                f"head={estimator!r} has no coef_: a head must be a fitted linear model; fit it "
                "first, or pass 'logistic', 'ridge' or a LinearHead"
            )
        coef = estimator.coef_
        coef = coef.toarray() if issparse(coef) else coef
        coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
        read = getattr(estimator, "decision_function", estimator.predict)
        rows = np.random.default_rng(0).normal(size=(20, coef.shape[1]))
        expected = coef @ rows.T + np.reshape(getattr(estimator, "intercept_", np.nan), (-1, 1))
        if not _same(read(rows), expected):
            raise ValueError(
                f"head={estimator!r} does not read X @ coef_.T + intercept_: a head must be a "
                "linear classifier or regressor such as LogisticRegression or Ridge"
            )
        intercept = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(coef))
        classes = getattr(estimator, "classes_", None)
        if classes is not None and len(classes) == 2 and len(coef) == 1:
            coef = np.concatenate([-coef, coef]) / 2
            intercept = np.concatenate([-intercept, intercept]) / 2
        return cls(coef, intercept, classes)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return no parameters: a frozen head has none to search.

        Parameters
        ----------
        deep : bool, default=True
            Ignored.

        Returns
        -------
        dict
            Empty.
        """
        return {}

    def set_params(self, **params: Any) -> Self:
        """Refuse: a frozen head has nothing to set.

        Parameters
        ----------
        **params : dict
            None may be given.

        Returns
        -------
        LinearHead
            Itself.

        Raises
        ------
        ValueError
            If there are any.
        """
        if params:
            raise ValueError(
                f"a LinearHead is frozen, so {sorted(params)} cannot be set: make a new one, "
                "LinearHead(coef, intercept, classes)"
            )
        return self

    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Do nothing: the head is frozen.

        Parameters
        ----------
        X : array-like, default=None
            Ignored.
        y : array-like, default=None
            Ignored.

        Returns
        -------
        LinearHead
            Itself.
        """
        return self

    @available_if(_is_classifier)
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Give the logits of a classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples, n_classes) or (n_samples,)
            Logits; for two classes the second minus the first.
        """
        logits = self.outputs(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    @available_if(_is_classifier)
    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logarithm of the softmax of the logits.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Log-probabilities, in the order of ``classes_``.
        """
        return log_softmax(self.outputs(X), axis=1)

    @available_if(_is_classifier)
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Softmax of the logits.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable label, or the regression's value.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Labels or values; one column for each output of a regressor with several.
        """
        outputs = self.outputs(X)
        if self.classes_ is not None:
            return self.classes_[outputs.argmax(axis=1)]
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy of a classifier, R² of a regressor.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            True labels or values.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row.

        Returns
        -------
        float
            The score.
        """
        metric = r2_score if self.classes_ is None else accuracy_score
        return float(metric(as_array(y), self.predict(X), sample_weight=sample_weight))

    def outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute XWᵀ + b in float64.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples, n_outputs)
            Logits or values, one column for each row of ``coef_``.

        Raises
        ------
        ValueError
            If X is not a finite matrix of the head's width.
        """
        rows: NDArray[np.float64] = check_array(as_array(X), dtype=np.float64, estimator=self)
        self.check_width(rows.shape[1])
        return rows @ self.coef_.T + self.intercept_

    def check_width(self, n_features: int) -> None:
        """Refuse embeddings of another width than the head's.

        Parameters
        ----------
        n_features : int
            Width of the embeddings.

        Raises
        ------
        ValueError
            If it is not ``n_features_in_``.
        """
        if n_features != self.n_features_in_:
            raise ValueError(
                f"X has {n_features} features, but the head expects {self.n_features_in_}: embed "
                "with the encoder that the head was trained on"
            )

    def encode(self, y: ArrayLike) -> NDArray[np.int64]:
        """Give each label the number of its row.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels.

        Returns
        -------
        ndarray of shape (n_samples,)
            Row numbers.

        Raises
        ------
        ValueError
            If a label is unknown to the head.
        """
        rows = {label: row for row, label in enumerate(self.known_classes().tolist())}
        labels = np.asarray(as_array(y)).tolist()
        unknown = self.unknown_labels(y)
        if unknown:
            raise ValueError(
                f"y contains labels unknown to the head: {unknown[:5]}; it knows {list(rows)}. "
                "Relabel y, or name the classes: LinearHead(head.coef_, head.intercept_, classes)"
            )
        return np.fromiter((rows[label] for label in labels), np.int64, len(labels))

    def unknown_labels(self, y: ArrayLike) -> list[Any]:
        """Find the labels that the head cannot predict.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels or values.

        Returns
        -------
        list
            Each of them once, sorted as strings. A regressor knows every number and no string.
        """
        labels = set(np.asarray(as_array(y)).ravel().tolist())
        if self.classes_ is None:
            unknown = {label for label in labels if isinstance(label, str)}
        else:
            unknown = labels - set(self.classes_.tolist())
        return sorted(unknown, key=str)

    def targets(self, y: ArrayLike) -> NDArray[Any]:
        """Give labels or values the shape that a loss over the outputs takes.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Labels of a classifier, values of a regressor.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Row numbers of a classifier; values of a regressor, in columns.

        Raises
        ------
        ValueError
            If a label is unknown to the head, or the values have other columns than its outputs.
        """
        if self.classes_ is not None:
            return self.encode(y)
        values = np.asarray(as_array(y), dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape[1] != len(self.coef_):
            raise ValueError(
                f"y has {values.shape[1]} column(s), but the head has {len(self.coef_)} "
                "output(s): pass as many columns, let a new head be fitted with head='ridge', or, "
                "if this head is a classifier, make it with its labels: LinearHead(coef, "
                "intercept, classes=[0, 1])"
            )
        return values

    def known_classes(self) -> NDArray[Any]:
        """Return the labels of a classifier.

        Returns
        -------
        ndarray of shape (n_outputs,)
            The same as ``classes_``.

        Raises
        ------
        ValueError
            If the head is a regressor.
        """
        if self.classes_ is None:
            raise ValueError("this LinearHead is a regressor (classes=None): it has no labels")
        return self.classes_

    def _sort_and_freeze(self) -> None:
        """Sort the rows by label, as scikit-learn expects, and make the arrays read-only."""
        if self.classes_ is not None:
            try:
                self.classes_, rows = np.unique(self.classes_, return_index=True)
            except TypeError as error:
                raise ValueError(
                    f"classes={self.classes_.tolist()} cannot be sorted ({error}): give labels of "
                    "one kind, all strings or all numbers"
                ) from error
            self.coef_, self.intercept_ = self.coef_[rows], self.intercept_[rows]
        for array in (self.coef_, self.intercept_, self.classes_):
            if array is not None:
                array.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._sort_and_freeze()

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        size = f"n_features={self.n_features_in_}"
        if self.classes_ is None:
            return f"LinearHead({size}, n_outputs={len(self.coef_)})"
        return f"LinearHead({size}, classes={self.classes_.tolist()})"[:N_CHAR_MAX]

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        if self.classes_ is None:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        else:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags


class MultiLabelHead(LinearHead):
    """A frozen linear head that answers each of several labels with yes or no.

    Its outputs are logits, one for each label, and the probability of a label is their sigmoid.
    Adapters that read only its weights take it, such as
    :class:`~isoadapt.LogitPreservingWhitening`. It does not predict, score or train, for these
    take one label for each row.

    Parameters
    ----------
    coef : array-like of shape (n_labels, n_features)
        Weights W.
    intercept : array-like of shape (n_labels,)
        Bias b.

    Examples
    --------
    >>> from scipy.special import expit
    >>> from isoadapt.heads import MultiLabelHead
    >>> head = MultiLabelHead([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0, -1.0])
    >>> expit(head.outputs([[1.0, -1.0]])) > 0.5
    array([[ True, False, False]])
    """

    def __init__(self, coef: ArrayLike, intercept: ArrayLike) -> None:
        super().__init__(coef, intercept)

    def predict(self, X: ArrayLike) -> NoReturn:
        """Refuse: the head does not give one label for each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Raises
        ------
        ValueError
            Always.
        """
        self.refuse("predict")

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> NoReturn:
        """Refuse: the head does not give one label for each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples, n_labels)
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Ignored.

        Raises
        ------
        ValueError
            Always.
        """
        self.refuse("score")

    def targets(self, y: ArrayLike) -> NoReturn:
        """Refuse: nothing here trains for several labels in a row.

        Parameters
        ----------
        y : array-like of shape (n_samples, n_labels)
            Ignored.

        Raises
        ------
        ValueError
            Always.
        """
        self.refuse("fit")

    def known_classes(self) -> NoReturn:
        """Refuse: the labels of a row are not classes.

        Raises
        ------
        ValueError
            Always.
        """
        self.refuse("predict")

    def refuse(self, use: str) -> NoReturn:
        """Say why the head cannot be used, and what can.

        Parameters
        ----------
        use : str
            A method, such as "fit".

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            f"{use}: this is a multi-label head, which answers {len(self.coef_)} labels with yes "
            "or no, while predictions, scores and training here take one label for each row. Its "
            "probabilities are scipy.special.expit(head.outputs(X)). LogitPreservingWhitening and, "
            "with head_training='frozen', Whitening, IsoBN, AllButTheTop and ClusterIsotropy use "
            "only its weights; with head=None (on the command line: --set head=None) an adapter "
            "needs no head"
        )

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"MultiLabelHead(n_features={self.n_features_in_}, n_labels={len(self.coef_)})"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags = None, None
        return tags


def _same(outputs: NDArray[Any], expected: NDArray[np.float64]) -> bool:
    """Whether outputs (n,) or (n, C) are the rows of `expected` (C, n)."""
    outputs = np.atleast_2d(np.asarray(outputs).T)
    return outputs.shape == expected.shape and np.allclose(outputs, expected, rtol=1e-4, atol=1e-6)


def needs_fit(head: Any) -> bool:
    """Return whether a head is fitted to embeddings instead of being used as it is.

    Parameters
    ----------
    head : LinearHead, estimator, str or None
        As given to an adapter.

    Returns
    -------
    bool
        True for a name and for an estimator that is not in FrozenEstimator.
    """
    return head is not None and not isinstance(head, LinearHead | FrozenEstimator)


def fit_head(
    kind: Any, X: NDArray[Any], y: NDArray[Any], sample_weight: NDArray[Any] | None = None
) -> LinearHead:
    """Fit a linear head to embeddings.

    Parameters
    ----------
    kind : {"logistic", "ridge"} or estimator
        Logistic regression (C=1) or ridge regression (alpha=1) on the standardised embeddings,
        with the scaling folded into the head. Features with less than 1e-3 of the root mean
        square deviation are divided by that, because their weights would be too large otherwise;
        features without variance get no weight. A linear scikit-learn estimator is cloned, and the
        clone is fitted to the embeddings as they are.
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Labels, or values.
    sample_weight : ndarray of shape (n_samples,), default=None
        Weight of each row.

    Returns
    -------
    LinearHead
        The head, which reads the embeddings as they are.

    Raises
    ------
    ValueError
        If the estimator is not linear, or takes no `sample_weight` and some are given.
    """
    if not isinstance(kind, str):
        return _fit_estimator(kind, X, y, sample_weight)
    rows = X.astype(np.float64)
    mean = np.average(rows, axis=0, weights=sample_weight)
    variances = np.average((rows - mean) ** 2, axis=0, weights=sample_weight)
    dead = dead_dimensions(variances)  # they get no weight
    live = ~dead | dead.all()
    raised = variances.clip(min=_FLOOR * variances.mean())
    deviations = np.sqrt(np.where(dead, 1.0, raised))[live]
    model = LogisticRegression(max_iter=1000) if kind == "logistic" else Ridge()
    model.fit((rows - mean)[:, live] / deviations, y, sample_weight=sample_weight)
    probe = LinearHead.from_estimator(model)
    coef = np.zeros((len(probe.coef_), len(mean)))
    coef[:, live] = probe.coef_ / deviations
    return LinearHead(coef, probe.intercept_ - coef @ mean, probe.classes_)


def _fit_estimator(
    estimator: Any, X: NDArray[Any], y: NDArray[Any], sample_weight: NDArray[Any] | None
) -> LinearHead:
    """Fit a clone of an estimator to embeddings as they are, in float64."""
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    if weights and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(
            f"sample_weight was given, but head={estimator!r} does not take it in fit: pass a head "
            "that does, such as 'logistic' or 'ridge', or fit without sample_weight"
        )
    model = clone(estimator).fit(X.astype(np.float64), y, **weights)
    if not hasattr(model, "coef_"):
        raise ValueError(
            f"head={estimator!r} has no coef_ after fit, so it is not a linear model: pass one "
            "such as LogisticRegression or Ridge, without a Pipeline or a search around it; "
            "'logistic', 'ridge'; or a LinearHead"
        )
    return LinearHead.from_estimator(model)
