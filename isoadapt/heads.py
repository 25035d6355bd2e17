"""Frozen linear heads: the last layer of a fine-tuned model, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, NoReturn, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import log_softmax
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array

from isoadapt._utils.devices import as_array

__all__ = ["LinearHead", "MultiLabelHead"]


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
        Label of each row of `coef`, in any order. None makes a regressor.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_features)
        Weights in float64. The rows of a classifier are in the order of ``classes_``.
    intercept_ : ndarray of shape (n_outputs,)
        Bias in float64, in the same order.
    classes_ : ndarray of shape (n_outputs,) or None
        Sorted labels of a classifier; None for a regressor.
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
    """

    _other_labels: NDArray[Any] | None = None  # of the rows: names of ids, or ids of names

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
        """Make a head from a fitted linear scikit-learn model.

        Parameters
        ----------
        estimator : estimator
            Fitted model with ``coef_`` and ``intercept_``, possibly wrapped in
            :class:`sklearn.frozen.FrozenEstimator`. The decision values of a classifier are taken
            as logits. The single row w of a binary classifier becomes the rows -w/2 and w/2, which
            give the same probabilities.

        Returns
        -------
        LinearHead
            Head with the same predictions. A LinearHead is returned unchanged.

        Raises
        ------
        ValueError
            If the estimator has no ``coef_``, because it is not linear or not fitted, or if its
            outputs are not X @ coef_.T + intercept_.
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
        outputs = np.atleast_2d(np.asarray(read(rows)).T)
        if outputs.shape != expected.shape or not np.allclose(outputs, expected, 1e-4, 1e-6):
            raise ValueError(
                f"head={estimator!r} does not compute X @ coef_.T + intercept_: a head must be a "
                "linear classifier or regressor such as LogisticRegression or Ridge"
            )
        intercept = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(coef))
        classes = getattr(estimator, "classes_", None)
        if classes is not None and len(classes) == 2 and len(coef) == 1:
            coef = np.concatenate([-coef, coef]) / 2
            intercept = np.concatenate([-intercept, intercept]) / 2
        return cls(coef, intercept, classes)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return an empty dict, because a frozen head has no parameters to search over.

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
        """Raise an error if any parameters are given, because the head is frozen.

        Parameters
        ----------
        **params : dict
            Must be empty.

        Returns
        -------
        LinearHead
            The head itself.

        Raises
        ------
        ValueError
            If `params` is not empty.
        """
        if params:
            raise ValueError(
                f"a LinearHead is frozen, so {sorted(params)} cannot be set: make a new head with "
                "LinearHead(coef, intercept, classes)"
            )
        return self

    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Do nothing, because the head is frozen.

        Parameters
        ----------
        X : array-like, default=None
            Ignored.
        y : array-like, default=None
            Ignored.

        Returns
        -------
        LinearHead
            The head itself.
        """
        return self

    @available_if(_is_classifier)
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the logits of a classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples, n_classes) or (n_samples,)
            Logits. For two classes, the logit of the second minus that of the first.
        """
        logits = self.outputs(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    @available_if(_is_classifier)
    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute log-probabilities, the log-softmax of the logits.

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
        """Compute probabilities, the softmax of the logits.

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
        """Predict labels, or the values of a regression.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Most probable labels, or values. A regressor with several outputs gives one column for
            each.
        """
        self._check_use("predict")
        outputs = self.outputs(X)
        if self.classes_ is not None:
            return self.classes_[outputs.argmax(axis=1)]
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the accuracy of a classifier or the R² of a regressor.

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
            Accuracy or R².
        """
        self._check_use("score")
        metric = r2_score if self.classes_ is None else accuracy_score
        head = self._for_labels(y)
        labels = [] if head.classes_ is None else [*head._unknown_labels(y), *head.classes_]
        if len({isinstance(label, str) for label in labels}) == 2:
            head._targets(y)  # raises, because strings and numbers are not compared
        return float(metric(as_array(y), head.predict(X), sample_weight=sample_weight))

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
            If X is not a finite matrix with `n_features_in_` columns.
        """
        rows: NDArray[np.float64] = check_array(as_array(X), dtype=np.float64, estimator=self)
        self._check_width(rows.shape[1])
        return rows @ self.coef_.T + self.intercept_

    def _check_width(self, n_features: int) -> None:
        """Raise ValueError unless the head is for embeddings of this width."""
        if n_features != self.n_features_in_:
            raise ValueError(
                f"X has {n_features} features, but the head expects {self.n_features_in_}: compute "
                "the embeddings with the encoder that the head was trained on"
            )

    def _check_use(self, use: str) -> None:
        """Raise ValueError if `use`, a method's name, needs another kind of head."""

    def _for_labels(self, y: ArrayLike | None) -> LinearHead:
        """Return the head whose classes are the names of the ids, or the ids, if y needs them."""
        if y is None or self._other_labels is None:
            return self
        other = LinearHead(self.coef_, self.intercept_, self._other_labels)
        other._other_labels = cast(NDArray[Any], self.classes_)[np.argsort(self._other_labels)]
        try:
            return other if self._unknown_labels(y) and not other._unknown_labels(y) else self
        except (TypeError, ValueError):  # y does not hold labels, and may be ignored
            return self

    def _unknown_labels(self, y: ArrayLike) -> list[Any]:
        """Return the different labels that the head cannot predict; a regressor, all strings."""
        labels = set(np.asarray(as_array(y)).ravel().tolist())
        if self.classes_ is None:
            unknown = {label for label in labels if isinstance(label, str)}
        else:
            unknown = labels - set(self.classes_.tolist())
        return sorted(unknown, key=str)

    def _known(self) -> str:
        """List what `y` may hold, for messages."""
        names = "" if self._other_labels is None else f" or, instead, {self._other_labels.tolist()}"
        return "numbers" if self.classes_ is None else f"{self.classes_.tolist()}{names}"

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        """Convert labels to rows of ``coef_`` (n,), or values to one column per output."""
        self._check_use("fit")
        values = np.asarray(as_array(y))
        if self.classes_ is not None:
            unknown = self._unknown_labels(values)
            if unknown:
                raise ValueError(
                    f"y contains labels unknown to the head: {unknown[:5]}; it knows "
                    f"{self._known()}. Relabel y, or name the classes: "
                    "LinearHead(head.coef_, head.intercept_, classes)"
                )
            rows = {label: row for row, label in enumerate(self.classes_.tolist())}
            return np.array([rows[label] for label in values.tolist()], np.int64)
        values = values.reshape(len(values), -1).astype(np.float64)
        if values.shape[1] != len(self.coef_):
            raise ValueError(
                f"y has {values.shape[1]} column(s), but the head has {len(self.coef_)} "
                "output(s): pass as many columns, fit a new head with head='ridge' or, if this "
                "head is a classifier, pass its labels: LinearHead(coef, intercept, classes=[0, 1])"
            )
        return values

    def _sort_and_freeze(self) -> None:
        """Sort the rows by label, as scikit-learn expects, and make the arrays read-only."""
        if self.classes_ is not None:
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
    """Frozen linear head for multi-label classification, with one binary output for each label.

    Its outputs are logits, one for each label. The probability of a label is the sigmoid of its
    logit. The head can be used by adapters that need only its weights, such as
    :class:`~isoadapt.LogitPreservingWhitening`. ``predict``, ``score`` and the training of an
    adapter raise ValueError, because they need one label for each row.

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

    def _check_use(self, use: str) -> NoReturn:
        """Raise ValueError: the head does not give one label for each row."""
        raise ValueError(
            f"{use}: this is a multi-label head with {len(self.coef_)} labels, while prediction, "
            "scoring and training need a head with one label for each row. Its probabilities are "
            "scipy.special.expit(head.outputs(X)). LogitPreservingWhitening and, with "
            "head_training='frozen', Whitening, IsoBN, AllButTheTop and ClusterIsotropy need only "
            "its weights; with head=None (on the command line: --set head=None) an adapter needs "
            "no head"
        )

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"MultiLabelHead(n_features={self.n_features_in_}, n_labels={len(self.coef_)})"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags = None, None
        return tags
