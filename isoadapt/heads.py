"""Frozen linear heads: the last layer of a fine-tuned model, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_expit, log_softmax
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_indicator, as_matrix, as_values
from isoadapt._utils.linear_models import check_predictions, read_linear
from isoadapt._utils.state import own_state

__all__ = ["LinearHead"]


def _is_classifier(head: LinearHead) -> bool:
    """Condition for the methods of a classifier; raises AttributeError for a regressor."""
    if head.classes_ is None:
        raise AttributeError("this LinearHead is a regressor (classes=None)")
    return True


class LinearHead(BaseEstimator):
    """Frozen linear classifier or regressor.

    It predicts like a scikit-learn estimator but is never trained: ``fit`` leaves it unchanged,
    :func:`sklearn.base.clone` returns the same object, and its arrays are read-only.

    Parameters
    ----------
    coef : array-like of shape (n_outputs, n_features)
        Weights W. A binary softmax head has two rows.
    intercept : array-like of shape (n_outputs,)
        Bias b.
    classes : array-like of shape (n_outputs,), default=None
        Label of each row of `coef`, in any order. None makes a regressor or, with `multi_label`,
        the labels 0, 1 and so on.
    multi_label : bool, default=False
        Whether any number of the labels can apply to a row of embeddings. The probability of each
        label is then the sigmoid of its output, and labels are given and predicted as an indicator
        matrix of 0 and 1, whose columns are in the order of the rows of `coef`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_features)
        Weights in float64. The rows of a classifier are in the order of ``classes_``.
    intercept_ : ndarray of shape (n_outputs,)
        Bias in float64, in the same order.
    classes_ : ndarray of shape (n_outputs,) or None
        Labels of a classifier, sorted unless it is multi-label; None for a regressor.
    multi_label_ : bool
        Whether the head is a multi-label classifier.
    n_features_in_ : int
        Number of features of the embeddings.

    Raises
    ------
    ValueError
        If the shapes do not fit together, a value is not finite, or a label occurs twice.

    Examples
    --------
    >>> from isoadapt import LinearHead
    >>> head = LinearHead([[0.0, 0.0], [1.0, 0.0]], [0.0, -1.0], classes=["no", "yes"])
    >>> head
    LinearHead(n_features=2, classes=['no', 'yes'])
    >>> head.predict([[3.0, 0.0], [0.0, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    >>> head = LinearHead([[2.0, 0.0], [0.0, 1.0]], [0.0, 0.0], ["toxic", "rude"], multi_label=True)
    >>> head.predict([[1.0, 1.0], [1.0, -1.0]])
    array([[1, 1],
           [1, 0]])
    """

    def __init__(
        self,
        coef: ArrayLike,
        intercept: ArrayLike,
        classes: ArrayLike | None = None,
        multi_label: bool = False,
    ) -> None:
        W, b = as_matrix(coef, "coef"), as_values(intercept, "intercept")
        options = {"dtype": np.float64, "copy": True}
        self.coef_: NDArray[np.float64] = check_array(W, input_name="coef", **options)
        self.intercept_: NDArray[np.float64] = check_array(
            b, ensure_2d=False, input_name="intercept", **options
        )
        n_outputs, self.n_features_in_ = self.coef_.shape
        if self.intercept_.shape != (n_outputs,):
            raise ValueError(
                f"intercept has shape {self.intercept_.shape}, coef has {n_outputs} rows: give "
                "one intercept for each row"
            )
        self.multi_label_ = bool(multi_label)
        labels = np.arange(n_outputs) if self.multi_label_ and classes is None else classes
        self.classes_ = None if labels is None else np.array(labels)
        fewest = n_outputs if self.multi_label_ else max(2, n_outputs)
        if self.classes_ is not None and (
            self.classes_.shape != (n_outputs,) or len(set(self.classes_.tolist())) < fewest
        ):
            raise ValueError(
                f"classes={classes!r}, but coef has {n_outputs} rows: give as many different "
                "labels, two or more unless multi_label=True, or classes=None for a regressor"
            )
        self._sort_and_freeze()

    @classmethod
    def from_estimator(cls, estimator: Any) -> LinearHead:
        """Make a head from a fitted linear scikit-learn model.

        Parameters
        ----------
        estimator : estimator
            Fitted linear model, or several of them in a
            :class:`~sklearn.multiclass.OneVsRestClassifier`, a
            :class:`~sklearn.multioutput.MultiOutputClassifier` for labels 0 and 1, or a
            :class:`~sklearn.multioutput.MultiOutputRegressor`. It may be wrapped in
            :class:`sklearn.frozen.FrozenEstimator`, in a search, or in a pipeline after linear
            transformers. The decision values of a classifier are taken as logits. The single row w
            of a binary classifier becomes the rows -w/2 and w/2, which give the same probabilities.
            An estimator that predicts an indicator matrix gives a multi-label head.

        Returns
        -------
        LinearHead
            Head with the same predictions; this is checked on random rows. Its probabilities are a
            softmax or sigmoids, and can differ from the estimator's own, for example for
            OneVsRestClassifier with three classes. A LinearHead is returned unchanged.

        Raises
        ------
        ValueError
            If the estimator is not fitted or gives no decision values, or if it does not predict
            X @ coef_.T + intercept_, the class of the highest of these values or, with several
            labels, 0 or 1 by their sign.
        """
        if isinstance(estimator, FrozenEstimator):
            return cls.from_estimator(estimator.estimator)
        if isinstance(estimator, cls):
            return estimator
        head = cls(*read_linear(estimator))
        check_predictions(estimator, head)
        return head

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return []  # a frozen head has nothing to set or to search over

    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Do nothing, because the head is frozen; X and y are ignored."""
        return self

    @available_if(_is_classifier)
    @own_state()
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the logits (n_samples, n_classes) of a classifier.

        For two classes, the result is the second logit minus the first, of shape (n_samples,). A
        multi-label head always gives shape (n_samples, n_labels).
        """
        logits = self.outputs(X)
        two = logits.shape[1] == 2 and not self.multi_label_
        return logits[:, 1] - logits[:, 0] if two else logits

    @available_if(_is_classifier)
    @own_state()
    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the logarithms (n_samples, n_classes) of :meth:`predict_proba`."""
        logits = self.outputs(X)
        return log_expit(logits) if self.multi_label_ else log_softmax(logits, axis=1)

    @available_if(_is_classifier)
    @own_state()
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute probabilities (n_samples, n_classes), in the order of ``classes_``.

        They are the softmax of the logits or, of a multi-label head, the sigmoids.
        """
        return np.exp(self.predict_log_proba(X))

    @own_state()
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the most probable labels (n_samples,), or the values of a regression.

        A regressor with several outputs gives one column for each, and a multi-label head an
        indicator matrix (n_samples, n_labels) of integers.
        """
        outputs = self.outputs(X)
        if self.multi_label_:
            return (outputs > 0).astype(np.int64)
        if self.classes_ is not None:
            return self.classes_[outputs.argmax(axis=1)]
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    @own_state()
    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the accuracy of a classifier or the R² of a regressor.

        `y` are true labels or values (n_samples,) or (n_samples, n_outputs), and `sample_weight`
        (n_samples,) are weights of the rows. The accuracy of a multi-label head is the share of the
        rows whose labels are all right. ValueError is raised if the head has none of the labels of
        y, or strings where y has numbers.
        """
        y = self._targets(y).astype(np.int64) if self.multi_label_ else as_values(y)
        metric = r2_score if self.classes_ is None else accuracy_score
        if self.classes_ is not None and not self.multi_label_:
            unknown = self._unknown_labels(y)
            kinds = {isinstance(label, str) for label in (*unknown, *self.classes_)}
            if len(kinds) == 2 or len(unknown) == len(set(np.ravel(y).tolist())):
                self._targets(y)  # raises: y is spelled otherwise, so that its score says nothing
        weights = as_values(sample_weight, "sample_weight", numeric=True)
        return float(metric(y, self.predict(X), sample_weight=weights))

    def outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute XWᵀ + b (n_samples, n_outputs) in float64, a column for each row of ``coef_``.

        ValueError is raised unless X is a finite matrix with `n_features_in_` columns.
        """
        rows: NDArray[np.float64] = check_array(as_matrix(X), dtype=np.float64, estimator=self)
        self._check_width(rows.shape[1])
        return rows @ self.coef_.T + self.intercept_

    def _check_width(self, n_features: int) -> None:
        """Raise ValueError unless the head is for embeddings of this width."""
        if n_features != self.n_features_in_:
            raise ValueError(
                f"X has {n_features} features, but the head expects {self.n_features_in_}: compute "
                "the embeddings with the encoder that the head was trained on"
            )

    def _with(self, coef: ArrayLike, intercept: ArrayLike) -> LinearHead:
        """Return a head of the same kind, with the same labels and other weights."""
        return LinearHead(coef, intercept, self.classes_, self.multi_label_)

    def _renamed(self, names: Mapping[Any, Any]) -> LinearHead:
        """Return the same classifier with other labels, by those that it has; others stay."""
        classes = [names.get(label, label) for label in cast(Any, self.classes_).tolist()]
        return LinearHead(self.coef_, self.intercept_, classes, self.multi_label_)

    def _unknown_labels(self, y: ArrayLike) -> list[Any]:
        """Return the different labels, or tuples of them, that it cannot predict; or strings."""
        values = np.asarray(as_values(y, names=self.classes_ if self.multi_label_ else None))
        width = 1 if values.ndim == 1 else values.shape[-1]
        known: Any = () if self.multi_label_ or self.classes_ is None else self.classes_.tolist()
        numbers = values.dtype.kind in "biuf" if self.classes_ is None else np.isin(values, (0, 1))
        if not known and width == len(self.coef_) and np.all(numbers):
            return []
        labels = map(tuple, values.tolist()) if width > 1 else values.ravel().tolist()
        return sorted({*labels} - {*known}, key=str)

    def _known(self) -> str:
        """List what `y` may hold, for messages."""
        if self.classes_ is None:
            return f"numbers in {len(self.coef_)} column(s)"
        kind = "an indicator matrix of " if self.multi_label_ else ""
        return f"{kind}{self.classes_.tolist()}"

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        """Convert labels to rows of ``coef_`` (n,), values or an indicator matrix to columns."""
        if self.multi_label_:
            return as_indicator(y, self.classes_).astype(bool)
        if unknown := self._unknown_labels(y):
            raise ValueError(
                f"y holds {unknown[:5]}, but the head predicts {self._known()}: relabel y, name "
                "the classes by LinearHead(head.coef_, head.intercept_, classes), or fit a new "
                "head with head='logistic' or 'ridge'"
            )
        values = np.asarray(as_values(y))
        if self.classes_ is None:
            return values.reshape(len(values), -1).astype(np.float64)
        rows = {label: row for row, label in enumerate(self.classes_.tolist())}
        return np.array([rows[label] for label in values.ravel().tolist()], np.int64)

    def _sort_and_freeze(self) -> None:
        """Sort the rows of a softmax by label, as scikit-learn does, and make arrays read-only."""
        if self.classes_ is not None and not self.multi_label_:
            try:
                self.classes_, rows = np.unique(self.classes_, return_index=True)
            except TypeError as error:
                raise ValueError(
                    f"classes={self.classes_.tolist()} cannot be sorted ({error}): use labels of "
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
        kind = ", multi_label=True" if self.multi_label_ else ""
        return f"LinearHead({size}, classes={self.classes_.tolist()}{kind})"[:N_CHAR_MAX]

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
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_label=self.multi_label_)
        return tags
