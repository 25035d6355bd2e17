"""Adapter with the Isotropy Layer."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import torch

from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt.adapters._engine._exact import solve_exact
from isoadapt.adapters._engine._task import Penalty, Problem
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.losses import IsoScoreLoss
from isoadapt.losses._isoscore import fewest_points

# Parameters that act with solver="exact"; the others must keep their defaults, or be None.
_EXACT = {"head", "ridge", "alpha", "solver", "device", "random_state", "verbose"}


@dataclass(eq=False, repr=False, kw_only=True)
class IsotropyLayer(PenalisedAdapter):
    """Linear layer between a frozen encoder and its frozen head, trained for isotropy and the task.

    The loss is ``alpha * task + (1 - alpha) * penalty``. The penalty is -log IsoScore of the
    adapted embeddings. The two losses are balanced by their moving means. The layer starts as the
    identity.

    Parameters
    ----------
    <linear head>
    alpha : float, default=0.5
        Share of the task in the loss, in (0, 1]. 1 is the control without a penalty.
    solver : {"minibatch", "exact"}, default="minibatch"
        "minibatch" is the training of the paper. "exact" computes the limit of that training
        directly: the head's outputs are fitted to the task as far as `ridge` allows, and all
        directions outside the row space of the head are whitened. It uses all rows, without
        validation rows, and does not warn if the score decreases. With "exact", `alpha` only has an
        effect where more isotropy requires a change of the head's outputs, and the parameters of
        mini-batches, such as `balance`, `lr` or `max_epochs`, must keep their defaults or be None.
        Then `history_` has entries with "iteration" and "loss", `n_iter_` is the number of
        iterations, and there is no `best_epoch_`.
    bias_corrected : bool, default=True
        Whether to correct most of the bias of the penalty in small batches. The penalty then needs
        batches of at least 4 rows; otherwise it needs 3.

    Attributes
    ----------
    <attributes>

    Other Parameters
    ----------------
    <training>

    Notes
    -----
    On a CPU, "minibatch" runs small steps in one thread, because several threads would make them
    much slower if other programs keep the cores busy. Large steps run in all threads of torch.
    ``torch.get_num_threads()`` is the same before and after a fit, unless `scoring` sets it to more
    than 1; in this case that number stays.

    With "exact", the highest possible IsoScore under a head of rank r is
    (PR(Σ_U) + d - r - 1) / (d - 1). Σ_U is the covariance of the r coordinates in the row space of
    the head, and PR is its participation ratio tr(Σ_U)² / tr(Σ_U²).

    References
    ----------
    "Optimizing the performance of text classification models by improving the isotropy of the
    embeddings using a joint loss function", section 3.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import IsotropyLayer
    >>> from isoadapt.metrics import isoscore
    >>> X, y = make_classification(500, 10, n_informative=6, random_state=0)
    >>> layer = IsotropyLayer(solver="exact").fit(X, y)
    >>> isoscore(layer.transform(X)) > isoscore(X)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PenalisedAdapter._parameter_constraints,
        "bias_corrected": ["boolean"],
        "solver": [StrOptions({"minibatch", "exact"})],
        "alpha": [Interval(Real, 0, 1, closed="right")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"alpha"}

    bias_corrected: bool = True
    solver: str = "minibatch"
    alpha: float = 0.5
    balance: str | None = "ema"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(form="log", bias_corrected=self.bias_corrected)
        least_rows = fewest_points(0, self.bias_corrected)
        return Penalty(loss, least_rows, shared=True, shifts=False)

    @property
    def _penalty_weight(self) -> float:
        return (1 - self.alpha) / self.alpha

    @property
    def _is_exact(self) -> bool:  # type: ignore[override]
        return self.solver == "exact"

    def _check_combination(self) -> None:
        super()._check_combination()
        if self._is_exact:
            for name, value in self.get_params(deep=False).items():
                if not (name in _EXACT or value is None or value == getattr(IsotropyLayer, name)):
                    raise ValueError(
                        f"{name}={value!r} has no effect with solver='exact': leave it at "
                        f"{getattr(IsotropyLayer, name)!r}, or use solver='minibatch'"
                    )

    def _fit(self, problem: Problem) -> Self:
        if not self._is_exact:
            return super()._fit(problem)
        self.__dict__.pop("best_epoch_", None)
        self.ridge_ = problem.automatic_ridge if self.ridge == "auto" else float(self.ridge)
        map_, losses = solve_exact(problem, self._penalty_weight, self.ridge_)
        self.history_ = [{"iteration": number, "loss": loss} for number, loss in enumerate(losses)]
        self.n_iter_ = max(len(losses) - 1, 1)
        return self._set_fitted(map_, problem.head)
