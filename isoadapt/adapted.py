"""Encoder and adapter as one estimator."""

import os
from typing import Any, ClassVar, Self, cast

from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin, _fit_context, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from isoadapt.adapters import IsotropyLayer
from isoadapt.adapters._base import BaseAdapter
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._checkpoint import find_head
from isoadapt.heads import LinearHead

__all__ = ["AdaptedEncoder"]


def _fitted_adapter_has(name: str) -> Any:
    def check(self: "AdaptedEncoder") -> bool:
        adapter = self.pipeline_["adapter"] if hasattr(self, "pipeline_") else self._adapter()
        getattr(adapter, name)
        return True

    return check


class AdaptedEncoder(TransformerMixin, BaseEstimator):
    """A fine-tuned encoder with an adapter on it, from texts to embeddings and predictions.

    It is a pipeline of a :class:`TransformerEncoder` and an adapter that knows where the head
    is: in the checkpoint, unless the adapter was given a fitted one.

    Parameters
    ----------
    encoder : str, path-like or TransformerEncoder
        Folder or name of a checkpoint, or an encoder. Its parameters are searched as
        ``encoder__max_length`` and so on.
    adapter : adapter, default=None
        Any adapter; None is ``IsotropyLayer()``. Its parameters are searched as
        ``adapter__alpha`` and so on. If its ``head`` is None or the name of a probe and the
        checkpoint has a head of its own, that one is used (with ``head=None`` only where ``fit``
        is given y). An adapter with ``head_training="refit"`` learns from it only of what kind
        its own head is to be.

    Attributes
    ----------
    pipeline_ : Pipeline
        The fitted steps "encoder" and "adapter".
    head_ : LinearHead or None
        The head that reads the adapted embeddings.
    classes_ : ndarray of shape (n_classes,)
        Labels in sorted order, where the head is a classifier.

    Examples
    --------
    >>> from isoadapt import AdaptedEncoder, LogitPreservingWhitening
    >>> model = AdaptedEncoder("path/to/checkpoint", LogitPreservingWhitening())
    >>> model.set_params(encoder__max_length=64, adapter__strength=0.5)  # doctest: +SKIP
    >>> model.fit(texts).transform(texts)  # doctest: +SKIP
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "encoder": [str, os.PathLike, TransformerEncoder],
        "adapter": [BaseAdapter, None],
    }

    pipeline_: Pipeline

    def __init__(self, encoder: Any, adapter: Any = None) -> None:
        self.encoder = encoder
        self.adapter = adapter

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: ArrayLike | None = None) -> Self:
        """Encode the texts and fit the adapter to them.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts, as for :meth:`TransformerEncoder.transform`.
        y : array-like of shape (n_samples,), default=None
            Labels or values, where the adapter needs them.

        Returns
        -------
        AdaptedEncoder
            Itself.
        """
        encoder = clone(self._encoder())
        adapter = clone(self._adapter())
        if adapter.head is None or isinstance(adapter.head, str):
            head = find_head(encoder)
            if head is not None and not (y is None and adapter.head is None):
                adapter.set_params(head=head)
        pipeline = Pipeline([("encoder", encoder), ("adapter", adapter)])
        self.pipeline_ = pipeline.fit(X, y)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Encode texts and adapt the embeddings.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts.

        Returns
        -------
        ndarray of shape (n_samples, n_features_out), float32
            Adapted embeddings.
        """
        return self._fitted().transform(X)

    @available_if(_fitted_adapter_has("predict"))
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict by the head on the adapted embeddings.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Labels or values.
        """
        return self._fitted().predict(X)

    @available_if(_fitted_adapter_has("predict_proba"))
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Give the head's probabilities on the adapted embeddings.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        return self._fitted().predict_proba(X)

    @available_if(_fitted_adapter_has("decision_function"))
    def decision_function(self, X: Any) -> NDArray[Any]:
        """Give the head's logits on the adapted embeddings.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts.

        Returns
        -------
        ndarray of shape (n_samples, n_classes) or (n_samples,)
            Logits; for two classes the second minus the first.
        """
        return self._fitted().decision_function(X)

    def score(self, X: Any, y: ArrayLike | None = None) -> float:
        """Accuracy or R² of the head; without a head the IsoScore.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts.
        y : array-like of shape (n_samples,), default=None
            True labels or values.

        Returns
        -------
        float
            The score; more is better.
        """
        return self._fitted().score(X, y)

    @property
    def head_(self) -> LinearHead | None:  # noqa: D102 - an attribute, documented above
        return cast(BaseAdapter, self._fitted()["adapter"]).head_

    @property
    def classes_(self) -> NDArray[Any]:  # noqa: D102 - an attribute, documented above
        return cast(BaseAdapter, self._fitted()["adapter"]).classes_

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Name the columns that :meth:`transform` gives.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Ignored: texts have no feature names.

        Returns
        -------
        ndarray of str
            The adapter's names.
        """
        return self._fitted()["adapter"].get_feature_names_out()

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the encoder and the adapter too.

        Parameters
        ----------
        **params : dict
            Such as ``encoder__max_length`` or ``adapter__alpha``.

        Returns
        -------
        AdaptedEncoder
            Itself.
        """
        if any(name.startswith("encoder__") for name in params) and "encoder" not in params:
            self.encoder = self._encoder()
        if any(name.startswith("adapter__") for name in params) and "adapter" not in params:
            self.adapter = self._adapter()
        return super().set_params(**params)

    def _encoder(self) -> TransformerEncoder:
        if isinstance(self.encoder, TransformerEncoder):
            return self.encoder
        return TransformerEncoder(self.encoder)

    def _adapter(self) -> Any:
        return IsotropyLayer() if self.adapter is None else self.adapter

    def _fitted(self) -> Pipeline:
        check_is_fitted(self)
        return self.pipeline_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        adapter = self.pipeline_["adapter"] if hasattr(self, "pipeline_") else self._adapter()
        inner = get_tags(adapter)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags
