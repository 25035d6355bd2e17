"""Adapters that are given: an affine map, or any transformer of scikit-learn."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import clone

from isoadapt._utils.sklearn_private import HasMethods, _fit_context
from isoadapt._utils.state import own_state
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._closed_form import OnePassAdapter, RefittedHead
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.adapters._rows import Sample
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


@dataclass(eq=False, repr=False)
class AffineAdapter(RefittedHead, OnePassAdapter):
    """Apply a given affine map z = Ah + c.

    ``fit`` learns only the head, if there is one. A map that was computed elsewhere, such as a
    rotation or a whitening of other data, is exported, merged and compared like any other adapter.

    Parameters
    ----------
    matrix : array-like of shape (n_features_out, n_features), default=None
        The matrix A. None is the identity.
    offset : array-like of shape (n_features_out,), default=None
        The offset c. None is zero.
    <head>

    Attributes
    ----------
    map_ : Affine
        The map.
    <common>

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import AffineAdapter, Whitening
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1] + 3
    >>> matrix, offset = Whitening().fit(X).to_affine()
    >>> adapter = AffineAdapter(matrix[:2], offset[:2]).fit(X)
    >>> adapter.transform(X).shape
    (500, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "matrix": ["array-like", None],
        "offset": ["array-like", None],
    }

    matrix: ArrayLike | None = None
    offset: ArrayLike | None = None

    def _fit_rows(self, rows: Sample, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        d = rows.X.shape[1]
        matrix = np.eye(d) if self.matrix is None else np.asarray(self.matrix, np.float64)
        offset = np.zeros(len(matrix)) if self.offset is None else np.asarray(self.offset, float)
        if matrix.ndim != 2 or matrix.shape[1] != d or offset.shape != matrix.shape[:1]:
            raise ValueError(
                f"matrix of shape {matrix.shape} and offset of shape {offset.shape} do not fit X "
                f"with {d} features: pass (n_features_out, {d}) and (n_features_out,)"
            )
        if not (np.isfinite(matrix).all() and np.isfinite(offset).all()):
            raise ValueError("matrix and offset must be finite")
        if head is not None:
            head._check_width(len(matrix))
        return {"map_": Affine(matrix, offset)}


class TransformerMap(NamedTuple):
    """The map of a fitted transformer of scikit-learn."""

    transformer: Any
    n_features_out: int

    def __call__(self, X: Floats) -> Floats:
        Z = self.transformer.transform(X)
        return np.asarray(Z.toarray() if issparse(Z) else Z, dtype=np.float64)


@dataclass(eq=False, repr=False)
class TransformerAdapter(RefittedHead, BaseAdapter):
    """A transformer of scikit-learn with a head, for AdaptedEncoder and compare_adapters."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "transformer": [HasMethods(["fit", "transform"])],
    }
    _affine: ClassVar[bool] = False
    _invertible: ClassVar[bool] = False

    transformer: Any

    @_fit_context(prefer_skip_nested_validation=False)
    @own_state()
    def fit(
        self, X: "ArrayLike", y: "ArrayLike | None" = None, groups: "ArrayLike | None" = None
    ) -> Self:
        """Fit the transformer to embeddings (n, d), and the head to what it gives."""
        rows = self._read_rows(X, y, groups=groups)
        fitted = clone(self.transformer).fit(rows.X, y if rows.y is None else rows.y)
        map_ = TransformerMap(fitted, fitted.transform(rows.X[:1]).shape[1])
        head = self._fit_head(rows, map_) if self._refits_head() else self._resolve_head(rows)
        return self._set_fitted(map_, head)

    def _needs_y(self) -> bool:
        return self._refits_head()
