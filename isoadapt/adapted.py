"""AdaptedEncoder: a text encoder and an adapter as one scikit-learn estimator."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import normalize
from sklearn.utils import Tags, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from isoadapt._fit_rows import (
    ALIGNED,
    POOLED,
    WHITENED,
    FitRows,
    ReadoutRows,
    needs_general,
    teachers_layers,
)
from isoadapt._utils.messages import shown, warn
from isoadapt._utils.sklearn_private import (
    HasMethods,
    Interval,
    StrOptions,
    _fit_context,
    _num_samples,
)
from isoadapt._utils.state import own_state
from isoadapt.adapters import IsotropyLayer, LogitPreservingWhitening, Whitening
from isoadapt.adapters._affine import TransformerAdapter
from isoadapt.adapters._base import BaseAdapter
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._aligned import Aligned
from isoadapt.encoders._class_labels import checkpoint_head
from isoadapt.encoders._pooling import READOUT, Normalize, several_layers
from isoadapt.encoders._transformer import has_unread_export
from isoadapt.heads import LinearHead
from isoadapt.metrics import MatchThreshold, match_threshold
from isoadapt.metrics._match_threshold import drawn
from isoadapt.metrics._points import warn_of_few_rows
from isoadapt.metrics._report_text import PARTLY

__all__ = ["AdaptedEncoder"]

_TAUGHT = "teacher_layers_", "r2_own_", "r2_general_"  # attributes of a fit with a teacher


def _fitted_adapter_has(name: str) -> Any:
    """Return a check for ``available_if``: whether the adapter has the method `name`."""
    return lambda self: getattr(self._last_adapter(), name)


def _warn_if_healthy(adapter: BaseAdapter) -> None:
    """Warn of a whitening of embeddings that no head reads and that are not collapsed."""
    if isinstance(adapter, Whitening) and adapter._head is None:
        variances = np.linalg.eigvalsh(adapter.moments_.scatter.numpy())
        if (share := variances[-1] / variances.sum()) < PARTLY:
            warn(
                f"the first direction of the embeddings holds only {share:.1%} of the variance: "
                "whitening lowers similarity if the encoder was trained for it; compare it with no "
                "adapter on your own pairs (isoadapt compare --pairs)"
            )


def _check_raw(encoder: Any) -> None:
    """Raise ValueError if no columns that a readout without a head reads are raw vectors."""
    pooling = getattr(encoder, "pooling", encoder)
    if isinstance(pooling, Aligned) or several_layers(pooling):
        raise ValueError(
            "passthrough=True, but without a head it is not known which columns of the encoder are "
            "the raw vectors: keep its head, choose passthrough=False, or one pooling, as in "
            "TransformerEncoder(model, pooling='mean')"
        )


@dataclass(eq=False, repr=False)
class AdaptedEncoder(TransformerMixin, BaseEstimator):
    """Embed texts with a fine-tuned encoder and adapt the embeddings.

    The estimator is a pipeline of an encoder and an adapter. The adapter uses the classifier head
    of the checkpoint, unless it is given another head: see :doc:`/guide/heads`.

    Parameters
    ----------
    encoder : str, path-like, tuple, SentenceTransformer or encoder
        Folder of a checkpoint, its name on the Hugging Face Hub, a live model as
        :class:`TransformerEncoder` takes it, such as ``(model, tokenizer)``, a TransformerEncoder,
        or an encoder of your own: a scikit-learn transformer of texts, images or other rows, which
        encodes each row alone, with the method ``head(y)``, which returns a LinearHead for its
        vectors or None, see :doc:`/guide/encoders_of_your_own`. Parameters of the encoder are set
        and searched as ``encoder__max_length`` and so on.
    adapter : adapter or transformer, default=None
        Any adapter of this package. None means ``IsotropyLayer()``. Parameters of the adapter are
        set and searched as ``adapter__alpha`` and so on. Its ``head`` decides which head is used,
        see Notes. Any other transformer of scikit-learn, such as ``PCA(50)``, is used as an adapter
        with ``head="auto"`` and ``head_training="refit"``.
    teacher : str, path-like, tuple or transformer of texts, default=None
        Encoder whose vectors a :class:`TeacherReadout` learns, such as the base model: a folder, a
        name on the Hub, a live ``(model, tokenizer)``, or an encoder, with parameters such as
        ``teacher__max_length``. Only ``fit`` uses it, and its weights are never saved. A live model
        cannot be pickled: set ``teacher=None`` after ``fit``.
    teacher_layers : int or "auto", default="auto"
        Number of the teacher's last layers that run on the classifier's token states, after a
        linear map that aligns these with the teacher's. 0 predicts the teacher's vectors from
        pooled hidden states instead, which is less exact. "auto" is 1 if both are transformers with
        the same tokenizer, and otherwise 0, with a warning.
    general : "auto", sequence of str or None, default="auto"
        Sentences on all subjects that are added to the texts of the fit, so that the map also suits
        other texts. "auto" adds those of :func:`~isoadapt.datasets.load_general_sentences` to every
        fit with a teacher, and to a fit of LogitPreservingWhitening if the logits of three or more
        classes explain most of the variance, because texts of one class would move apart. If your
        texts are not in English, it adds none, with a warning. None adds none.
    class_names : dict, default=None
        Dict from your labels to the checkpoint's names of the classes, one to one and complete.
        ``y``, ``classes_`` and predictions are then your labels; saved adapters and exports keep
        the checkpoint's names.
    passthrough : bool, default=False
        Whether the adapted embeddings are followed by the raw ones, each scaled to unit length; see
        :doc:`/guide/scope`. With a TeacherReadout, the raw ones are the head's input; without a
        head, the encoder must have one pooling, such as "mean". Predictions, saved adapters and
        exports are the same with and without.

    Attributes
    ----------
    pipeline_ : Pipeline
        The fitted pipeline with the steps "encoder" and "adapter".
    head_ : LinearHead or None
        The head that is applied to the adapted embeddings.
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted unless the head is multi-label. Only available if the head is a classifier.
    teacher_layers_ : int
        Number of last layers of the teacher that run; only with a teacher.
    r2_own_, r2_general_ : float
        R² of the teacher's vectors for a fifth of the given texts, and for a fifth of the general
        sentences, after a second fit without them; NaN if there are none. Only with a teacher.

    Notes
    -----
    ``head="auto"`` of an adapter is the checkpoint's head. Labels must then be the checkpoint's
    names of the classes, its ids, or the keys of `class_names`; others raise ValueError before
    texts are encoded. If the checkpoint has no head for the embeddings, "auto" means the same as
    for matrices; the tags before ``fit`` are also those for matrices. Any other head is taken
    literally. :doc:`/guide/heads` has the details.

    With a TeacherReadout, a folder or name of an encoder means ``TransformerEncoder(encoder,
    pooling="readout")``, and the fitted encoder in ``pipeline_`` holds the teacher's layers, see
    :doc:`/guide/readout`. The head is that of the checkpoint, if the encoder's first columns are
    its input. ``fit`` finds it: before that, the estimator has no predictions and no tags of a
    classifier or regressor, unless ``head`` is set.

    Examples
    --------
    >>> from isoadapt import AdaptedEncoder, LogitPreservingWhitening, TeacherReadout
    >>> model = AdaptedEncoder("path/to/checkpoint", LogitPreservingWhitening())
    >>> model.set_params(encoder__max_length=64, adapter__strength=0.5)  # doctest: +SKIP
    >>> model.fit(texts).transform(texts)  # doctest: +SKIP

    With a teacher, one pass gives vectors close to the teacher's, and the same predictions:

    >>> model = AdaptedEncoder("path/to/checkpoint", TeacherReadout(), teacher="path/to/base")
    >>> vectors, labels = model.fit(texts).transform_predict(texts)  # doctest: +SKIP
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "encoder": [object],  # TransformerEncoder checks it, whose message shows no whole model
        "adapter": [BaseAdapter, HasMethods(["fit", "transform"]), None],
        "teacher": [str, os.PathLike, tuple, HasMethods(["fit", "transform"]), None],
        "teacher_layers": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "general": [StrOptions({"auto"}), "array-like", None],
        "class_names": [dict, None],
        "passthrough": ["boolean"],
    }

    pipeline_: Pipeline = field(init=False)

    encoder: Any
    adapter: Any = None
    teacher: Any = None
    _: KW_ONLY
    teacher_layers: int | str = "auto"
    general: Any = "auto"
    class_names: Any = None
    passthrough: bool = False

    @_fit_context(prefer_skip_nested_validation=True)
    @own_state()
    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Encode the texts and fit the adapter to their embeddings.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts, as for :meth:`TransformerEncoder.transform`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels, their indicator matrix, or values. Required if the adapter needs them; ignored
            by a TeacherReadout.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights, for an adapter whose ``fit`` accepts them.
        groups : array-like of shape (n_samples,), default=None
            Group of each text, for an adapter whose ``fit`` accepts them.

        Returns
        -------
        AdaptedEncoder
            The fitted estimator itself.

        Raises
        ------
        ValueError
            If weights or groups are given, but the adapter's ``fit`` does not accept them; if a
            TeacherReadout has no `teacher`, or another adapter has one; or if y or `class_names`
            has labels that are not the checkpoint's.
        """
        given = {"sample_weight": sample_weight, "groups": groups}
        self._fit(X, y, {name: value for name, value in given.items() if value is not None})
        return self

    @own_state()
    def transform(self, X: Any) -> NDArray[Any]:
        """Encode texts and adapt the embeddings: (n_samples, n_features_out), float32."""
        return self._vectors(self._fitted()["encoder"].transform(X))

    @available_if(_fitted_adapter_has("predict"))
    @own_state()
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels or values (n_samples,) or (n_samples, n_outputs) with the head."""
        return self._fitted().predict(X)

    @available_if(_fitted_adapter_has("predict"))
    @own_state()
    def transform_predict(self, X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Adapt the embeddings and predict, with one pass of the encoder.

        The result is a pair of what :meth:`transform` and :meth:`predict` return, on which
        ``set_output`` has no effect.
        """
        steps = self._fitted()
        embeddings = steps["encoder"].transform(X)
        return self._vectors(embeddings), steps["adapter"].predict(embeddings)

    @available_if(_fitted_adapter_has("predict_proba"))
    @own_state()
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict probabilities (n_samples, n_classes), in the order of ``classes_``."""
        return self._fitted().predict_proba(X)

    @available_if(_fitted_adapter_has("predict_log_proba"))
    @own_state()
    def predict_log_proba(self, X: Any) -> NDArray[Any]:
        """Predict the logarithms (n_samples, n_classes) of :meth:`predict_proba`."""
        return self._fitted().predict_log_proba(X)

    @available_if(_fitted_adapter_has("decision_function"))
    @own_state()
    def decision_function(self, X: Any) -> NDArray[Any]:
        """Compute the head's logits (n_samples, n_classes), in the order of ``classes_``.

        For two classes, the result is the second logit minus the first, of shape (n_samples,).
        """
        return self._fitted().decision_function(X)

    @own_state()
    def score(
        self, X: Any, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the accuracy or R² of the head, or the IsoScore if there is no head.

        `y` are true labels or values (n_samples,) or (n_samples, n_outputs), not needed without a
        head, and `sample_weight` (n_samples,) are weights of the texts, ignored without one. The
        IsoScore is too high for texts that the adapter was fitted to, especially if few. For a
        TeacherReadout without a head, the score is R² of the teacher's vectors, which y must hold.
        Their R² on held-out texts of the fit is `r2_own_`.
        """
        steps = self._fitted()
        adapter, embeddings = steps["adapter"], steps["encoder"].transform(X)
        if adapter._head is None:
            return cast(float, adapter.score(embeddings, y, sample_weight))
        return BaseAdapter.score(adapter, embeddings, y, sample_weight)

    @own_state()
    def match_threshold(self, X: Any, rate: float = 0.001, queries: Any = None) -> MatchThreshold:
        """Find the cosine of adapted embeddings that a given share of random pairs exceeds.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts, as for :meth:`fit`, without labels. Of more than 4,000, a sample is encoded.
        rate : float, default=0.001
            Share of the random pairs, between 0 and 1.
        queries : sequence of str or of pairs of str, default=None
            Texts that are compared with those of X. None compares these with each other.

        Returns
        -------
        MatchThreshold
            Named tuple (threshold, ci_low, ci_high) of :func:`~isoadapt.metrics.match_threshold`.
        """

        def vectors(texts: Any) -> NDArray[Any]:
            return self.transform(texts if isinstance(texts, str) else drawn(texts))

        return match_threshold(vectors(X), rate, None if queries is None else vectors(queries))

    @property
    def head_(self) -> LinearHead | None:  # noqa: D102 - an attribute, documented above
        return cast(BaseAdapter, self._fitted()["adapter"]).head_

    @property
    def classes_(self) -> NDArray[Any]:  # noqa: D102 - an attribute, documented above
        return cast(BaseAdapter, self._fitted()["adapter"]).classes_

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Return the adapter's output feature names, and with `passthrough` "raw0" and so on.

        Texts have no feature names, so `input_features` is ignored.
        """
        adapter = self._fitted()["adapter"]
        raw = [f"raw{i}" for i in range(self._n_raw() if self.passthrough else 0)]
        return np.append(adapter.get_feature_names_out(), raw)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, those of the parts by names such as ``encoder__max_length``."""
        nested = {name: params.pop(name) for name in list(params) if "__" in name}
        super().set_params(**params)
        parts = {name.partition("__")[0] for name in nested}
        if "adapter" in parts and self.adapter is None:
            self.adapter = self._adapter()
        for part in parts & {"encoder", "teacher"}:
            setattr(self, part, getattr(self, f"_{part}")())
        return super().set_params(**nested)

    def _encoder(self) -> Any:
        """Return the encoder, built from a folder, name or live model if necessary."""
        if isinstance(self.encoder, BaseEstimator) or hasattr(self.encoder, "transform"):
            names = ("fit", "transform", "head")
            missing = [name for name in names if not callable(getattr(self.encoder, name, None))]
            if missing:
                raise TypeError(
                    f"encoder={shown(self.encoder)} lacks the methods {', '.join(missing)}: pass a "
                    "folder, a name, a live model, or a scikit-learn transformer with the method "
                    "head(y), which returns a LinearHead for its vectors or None"
                )
            return self.encoder
        taught = self._adapter()._needs_teacher
        return TransformerEncoder(self.encoder, pooling=READOUT if taught else "auto")

    def _teacher(self) -> Any:
        """Return the teacher, built from a folder or name if necessary."""
        if self.teacher is None:
            raise ValueError(
                f"{type(self._adapter()).__name__} learns a teacher's vectors, but teacher=None: "
                "pass the folder or name of that encoder, such as the base model"
            )
        if isinstance(self.teacher, str | os.PathLike | tuple):
            return TransformerEncoder(self.teacher)
        return self.teacher

    def _adapter(self) -> Any:
        """Return the adapter or its default, or another transformer as an adapter."""
        adapter = IsotropyLayer() if self.adapter is None else self.adapter
        return adapter if isinstance(adapter, BaseAdapter) else TransformerAdapter(adapter)

    def _last_adapter(self) -> Any:
        """Return the adapter of the fitted pipeline, or before ``fit`` the one that is given."""
        return self.pipeline_["adapter"] if hasattr(self, "pipeline_") else self._adapter()

    def _unfitted_pipeline(self, y: ArrayLike | None) -> Pipeline:
        """Return the pipeline to fit: encoder and adapter, whose head "auto" is the encoder's."""
        encoder, adapter = clone(self._encoder()), clone(self._adapter())
        if adapter._needs_teacher:
            self._teacher()  # raises if there is none
        elif self.teacher is not None:
            raise ValueError(
                f"teacher={shown(self.teacher)} was given, but {type(adapter).__name__} has none: "
                "choose adapter=TeacherReadout(), or leave teacher out"
            )
        labels, head = None if adapter._needs_teacher else y, None
        if adapter.head == "auto" or self.class_names is not None:
            head = checkpoint_head(encoder, labels, self.class_names)
        if adapter.head == "auto" and head is not None:
            own = clone(adapter).set_params(head=head)
            if labels is not None or adapter._needs_teacher or not own._needs_y():
                adapter = own  # otherwise there are no labels to refit the head to
        if y is None and isinstance(adapter, LogitPreservingWhitening) and adapter._needs_y():
            raise ValueError(
                "LogitPreservingWhitening keeps the predictions of a classifier, but the encoder "
                "has none, and there are no labels to fit one to: choose Whitening(), or pass y"
            )
        return Pipeline([("encoder", encoder), ("adapter", adapter)])

    def _fit(self, X: Any, y: Any, given: dict[str, Any]) -> Any:
        """Fit to texts with the given weights and groups, and return their vectors (n, d)."""
        for name in given:
            if not has_fit_parameter(self._adapter(), name):
                kind = type(self._adapter()).__name__
                raise ValueError(f"{name} was given, but {kind}.fit does not accept it: omit it")
        pipeline = self._unfitted_pipeline(y)
        if has_unread_export(pipeline["encoder"]):
            warn(
                f"{pipeline['encoder'].open().backbone.shown} also holds repaired vectors, which "
                "were exported with an adapter, but the input of its classifier is taken: for the "
                "repaired ones choose pooling='exported', otherwise pooling='head_input'"
            )
        encoder, adapter = (step for _, step in pipeline.steps)
        figures: tuple[float, ...] = ()
        if self.teacher is not None:
            fit, n_layers, *test = self._readout_rows(pipeline, X, given)
            fit.fit(adapter)
            columns, figures = fit.columns, (n_layers, *fit.explained(adapter, *test))
        else:
            columns = encoder.fit_transform(X, y)
            if needs_general(self.general, adapter, encoder, columns):
                rows = FitRows.of(X, self.general, encoder, given, *WHITENED)
                adapter._has_general_texts = bool(rows.general)
                adapter.fit(rows.stacked(columns, encoder), **rows.options())
            else:
                adapter.fit(columns, y, **given)
        warn_of_few_rows(_num_samples(X))
        _warn_if_healthy(adapter)
        for name in _TAUGHT:
            self.__dict__.pop(name, None)
        self.__dict__.update(zip(_TAUGHT, figures, strict=False), pipeline_=pipeline)
        return columns[: _num_samples(X)]

    def _readout_rows(
        self, pipeline: Pipeline, X: Any, given: dict[str, Any]
    ) -> tuple[ReadoutRows, int, Any, NDArray[np.bool_]]:
        """Fit the encoder; return rows of the readout, the number of layers, and what tests it."""
        teacher, (encoder, adapter) = self._teacher(), (step for _, step in pipeline.steps)
        layers = teachers_layers(encoder, teacher, X, self.teacher_layers)
        if self.passthrough and adapter._head is None:
            _check_raw(layers or encoder)
        how = POOLED if layers is None else ALIGNED
        rows, tested, n = FitRows.of(X, self.general, encoder, given, *how), None, 0
        targets = rows.stacked(teacher.transform(X), teacher)
        held = rows.held(targets)
        if layers is not None:
            encoder, tested = rows.aligned(encoder, teacher, layers, held)
            pipeline.steps[0] = ("encoder", encoder)
            steps = teacher.open().pooling.steps  # others than scaling change the vectors
            if all(isinstance(step, Normalize) for step in steps):
                n = layers.width
        columns = rows.stacked(encoder.fit_transform(X), encoder)
        return ReadoutRows(rows, columns, targets, n), getattr(layers, "n_layers", 0), tested, held

    def _n_raw(self) -> int:
        """Return the number of columns that are raw embeddings."""
        adapter = self.pipeline_["adapter"]
        head = adapter.head_ if adapter._needs_teacher else None
        if adapter._needs_teacher and head is None:
            _check_raw(self.pipeline_["encoder"])
        return cast(int, (head or adapter).n_features_in_)

    def _vectors(self, embeddings: Any) -> NDArray[Any]:
        """Return the adapted vectors of embeddings, with `passthrough` beside the raw ones."""
        adapted = self.pipeline_["adapter"].transform(embeddings)
        if not self.passthrough:
            return adapted
        raw = np.asarray(embeddings)[:, : self._n_raw()]
        return np.hstack([normalize(each) for each in (adapted, raw)])

    def _fitted(self) -> Pipeline:
        """Return the fitted pipeline."""
        check_is_fitted(self)
        return self.pipeline_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        adapter = self._last_adapter()
        # The own y of an adapter with a teacher are vectors, so it is not a classifier.
        get = BaseAdapter.__sklearn_tags__ if adapter._needs_teacher else get_tags
        inner = get(adapter)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        own = isinstance(self.encoder, BaseEstimator)
        tags.input_tags = get_tags(self.encoder if own else TransformerEncoder("")).input_tags
        return tags
