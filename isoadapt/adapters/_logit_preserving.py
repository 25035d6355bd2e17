"""Whitening of the directions that a head does not read, which changes no prediction."""

from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from isoadapt.adapters._base import PROBES
from isoadapt.adapters._closed_form import MomentsAdapter
from isoadapt.adapters._linalg import (
    oas_shrinkage,
)
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.adapters._row_space import row_space, whiten_unseen
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


class LogitPreservingWhitening(MomentsAdapter):
    """Whiten all that a linear head cannot see, and leave what it sees.

    A head of rank r reads r directions; the other d - r are free. With R a basis of the head's
    row space and N of its complement, the map keeps Rᵀh, takes from Nᵀh what Rᵀh predicts of
    it, whitens the rest and scales it to the variance that makes IsoScore largest. The logits
    of *every* row stay, so no prediction can change.

    Parameters
    ----------
    head : LinearHead, linear estimator or {"logistic", "ridge"}, default="logistic"
        The head to preserve, as in :class:`IsotropyLayer`; an unfitted estimator and a named
        probe are fitted to the embeddings first, which needs y.
    shrinkage : float or "oas", default="oas"
        In [0, 1], of the residual's covariance to a multiple of the identity. "oas" estimates it
        from the covariance of the embeddings, as in :class:`Whitening`.
    strength : float, default=1.0
        The p in [0, 1] of the whitening Σ^(-p/2).
    preserve : {"logits", "differences"}, default="logits"
        "differences" keeps only the differences of logits: same probabilities, one more free
        direction. For classifiers.

    Attributes
    ----------
    map_ : Affine
        The fitted map.
    head_ : LinearHead
        The head.
    moments_ : Moments
        Of all rows seen.
    shrinkage_ : float
        The shrinkage used.

    References
    ----------
    Y. Chen, A. Wiesel, Y. C. Eldar and A. O. Hero (2010), "Shrinkage algorithms for MMSE
    covariance estimation".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import LinearHead, LogitPreservingWhitening
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1]
    >>> head = LinearHead(np.eye(2, 8), [0.0, 0.0], classes=[0, 1])
    >>> adapter = LogitPreservingWhitening(head=head).fit(X)
    >>> bool(np.abs(head.outputs(adapter.transform(X)) - head.outputs(X)).max() < 1e-9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "head": [StrOptions(set(PROBES)), HasMethods(["fit", "predict"])],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"oas"})],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "preserve": [StrOptions({"logits", "differences"})],
    }

    def __init__(
        self,
        head: Any = "logistic",
        *,
        shrinkage: float | str = "oas",
        strength: float = 1.0,
        preserve: str = "logits",
    ) -> None:
        self.head = head
        self.shrinkage = shrinkage
        self.strength = strength
        self.preserve = preserve

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        seen, unseen = row_space(self._head_coef(cast(LinearHead, head)))
        keep = Affine(seen.T, np.zeros(seen.shape[1]))
        given = self.shrinkage
        shrinkage = oas_shrinkage(moments) if given == "oas" else cast(float, given)
        map_ = whiten_unseen(moments, keep, seen, unseen, shrinkage, self.strength)
        return {"map_": map_, "shrinkage_": float(shrinkage)}

    def _head_coef(self, head: LinearHead) -> Floats:
        if self.preserve == "logits":
            return head.coef_
        if head.classes_ is None:
            raise ValueError(
                "preserve='differences' needs a classifier, but the head is a regressor: use "
                "preserve='logits'"
            )
        return head.coef_ - head.coef_.mean(axis=0)
