"""Whitening outside the row space of a head, which changes no prediction."""

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.utils import Tags

from isoadapt._utils.messages import warn
from isoadapt._utils.sklearn_private import HasMethods, Interval, StrOptions
from isoadapt.adapters._closed_form import MomentsAdapter
from isoadapt.adapters._heads import PROBES
from isoadapt.adapters._linalg import row_space, whiten_complement
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead

_FEW_FREE = 0.05  # share of free directions below which a warning is issued
_LEFT = 0.047  # share of their variance left by logits, over log(n_classes), for another one


@dataclass(eq=False, repr=False)
class LogitPreservingWhitening(MomentsAdapter):
    """Whiten embeddings outside the row space of a linear head, without changing its logits.

    The logits of a head of rank r depend on r directions only, its row space. The other d - r
    directions are free. Let R be an orthonormal basis of the row space and N one of its
    complement. The map keeps Rᵀh. It subtracts from Nᵀh its linear regression on Rᵀh, whitens the
    residual, and scales it to the variance that maximises IsoScore. The logits of *every* row stay
    the same, so no prediction changes.

    A head of many outputs leaves few directions free: the repr of a fitted adapter counts them,
    and a warning is issued if they are fewer than 5 % of all. Another warning is issued if the
    logits of three or more classes explain most of the variance of the free directions: fit to
    texts on other subjects too.

    Parameters
    ----------
    head : LinearHead, linear estimator or {"auto", "logistic", "ridge"}, default="auto"
        The head whose logits are preserved, as in :class:`IsotropyLayer`. One that is not frozen
        is fitted to the embeddings first, which requires y.
    shrinkage : float or {"auto", "oas"}, default="auto"
        Shrinkage, in [0, 1], of the covariance of the residual to a multiple of the identity. A
        name estimates it from the eigenvalues of this covariance, as in :class:`Whitening`.
    strength : float, default=1.0
        Strength p in [0, 1] of the whitening Σ^(-p/2). 1 whitens, 0 keeps the covariance of the
        residual up to a factor.
    preserve : {"logits", "differences"}, default="logits"
        "logits" preserves the logits or predicted values. "differences" preserves only the
        differences between the logits of the classes: the probabilities stay the same, and one
        more direction is free. It requires a classifier.

    Attributes
    ----------
    shrinkage_ : float
        The shrinkage used.
    <moments>

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
        "head": [StrOptions({"auto", *PROBES}), HasMethods(["fit", "predict"])],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto", "oas"})],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "preserve": [StrOptions({"logits", "differences"})],
    }

    _auto_head = "logistic"
    _keeps_predictions = True
    _has_general_texts: ClassVar[bool] = False  # whether some were added to the task's own

    head: Any = "auto"
    _: KW_ONLY
    shrinkage: float | str = "auto"
    strength: float = 1.0
    preserve: str = "logits"

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        shown = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "map_"):
            return shown
        d = self.n_features_in_
        free = row_space(self._preserved_coef(cast(LinearHead, self.head_)))[1].shape[1]
        return f"{shown}: {free} of {d} directions are free"

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        basis, complement = row_space(self._preserved_coef(cast(LinearHead, head)))
        d, rank = basis.shape
        if d - rank < _FEW_FREE * d:
            warn(
                f"head has rank {rank} of n_features={d}, so only {d - rank} directions are free "
                "and isotropy can hardly change: use a head of fewer outputs, or Whitening, which "
                "refits the head; preserve='differences' frees one direction more"
            )
        if not self._has_general_texts and self._parts_classes(moments, cast(LinearHead, head)):
            warn(
                "the logits explain most of the variance that is whitened, as in texts of the "
                "classes alone, and texts of one class then move apart: fit to as many texts "
                "on other subjects too (load_general_sentences), as AdaptedEncoder does"
            )
        keep = Affine(basis.T, np.zeros(basis.shape[1]))
        map_, shrinkage = whiten_complement(
            moments, keep, basis, complement, self.shrinkage, self.strength
        )
        return {"map_": map_, "shrinkage_": shrinkage}

    def _parts_classes(self, moments: Moments, head: LinearHead) -> bool:
        """Whether texts of one class move apart: logits explain most of the free directions."""
        classes, cov = head.classes_, moments.covariance().numpy()
        if classes is None or len(classes) < 3:
            return False
        basis, complement = row_space(self._preserved_coef(head))
        inner, cross = basis.T @ cov @ basis, basis.T @ cov @ complement
        explained = (np.linalg.pinv(inner, hermitian=True) @ cross * cross).sum()
        left = _LEFT * np.log(len(classes))
        return bool(explained > (1 - left) * (cov.trace() - inner.trace()))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if self.preserve == "differences" and tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = False
        return tags

    def _preserved_coef(self, head: LinearHead) -> Floats:
        """Return the coefficients (n_outputs, n_features) whose outputs must not change."""
        if self.preserve == "logits":
            return head.coef_
        if head.classes_ is None or head.multi_label_:
            raise ValueError(
                "preserve='differences' needs a classifier with one label for each row, whose "
                f"predictions depend on differences of logits, but the head is {head!r}: use "
                "preserve='logits'"
            )
        return head.coef_ - head.coef_.mean(axis=0)
