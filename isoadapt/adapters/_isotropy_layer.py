"""Adapter with the Isotropy Layer."""

from dataclasses import dataclass
from functools import wraps
from numbers import Real
from typing import Any, ClassVar

import torch

from isoadapt._utils.sklearn_private import Interval
from isoadapt.adapters._engine._task import Penalty, Problem
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.losses import IsoScoreLoss
from isoadapt.losses._isoscore import fewest_points


@dataclass(eq=False, repr=False, kw_only=True)
class IsotropyLayer(PenalisedAdapter):
    """Linear layer between a frozen encoder and its frozen head, trained for isotropy and the task.

    The loss is ``alpha * task + (1 - alpha) * penalty``. The penalty is -log IsoScore of the
    adapted embeddings. The two losses are balanced by their moving means. The layer starts as the
    identity. :class:`ExactIsotropyLayer` computes the limit of the training directly.

    Parameters
    ----------
    <linear head>
    alpha : float, default=0.5
        Share of the task in the loss, in (0, 1]. 1 is the control without a penalty.
    bias_corrected : bool, default=True
        Whether to correct most of the bias of the penalty in small batches. The penalty then needs
        batches of at least 4 rows; otherwise it needs 3.

    <attributes and training>

    Notes
    -----
    On a CPU, small steps run in one thread, because several threads would make them much slower if
    other programs keep the cores busy. Large steps run in all threads of torch, whose number is the
    same after a fit.

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
    >>> layer = IsotropyLayer(random_state=0).fit(X, y)
    >>> isoscore(layer.transform(X)) > isoscore(X)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bias_corrected": ["boolean"],
        "alpha": [Interval(Real, 0, 1, closed="right")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"alpha"}

    bias_corrected: bool = True
    alpha: float = 0.5
    balance: str | None = "ema"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(form="log", bias_corrected=self.bias_corrected)
        least_rows = fewest_points(0, self.bias_corrected)
        return Penalty(loss, least_rows, shared=True, shifts=False)

    @property
    def _penalty_weight(self) -> float:
        return (1 - self.alpha) / self.alpha


_init = IsotropyLayer.__init__


@wraps(_init)
def _refuse_solver(self: IsotropyLayer, *args: Any, **parameters: Any) -> None:
    if "solver" in parameters:
        raise TypeError(
            f"solver={parameters['solver']!r}: IsotropyLayer has no such parameter; omit it, or "
            "use ExactIsotropyLayer for what was solver='exact'"
        )
    _init(self, *args, **parameters)


IsotropyLayer.__init__ = _refuse_solver  # type: ignore[method-assign]
