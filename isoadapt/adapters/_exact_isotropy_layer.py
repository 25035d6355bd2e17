"""Adapter with the Isotropy Layer that solves for the layer instead of training it."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Self

from tqdm.auto import tqdm

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.messages import shows_progress
from isoadapt._utils.sklearn_private import Interval
from isoadapt.adapters._engine._exact import solve_exact
from isoadapt.adapters._engine._task import Problem
from isoadapt.adapters._penalised import TaskAdapter


@dataclass(eq=False, repr=False, kw_only=True)
class ExactIsotropyLayer(TaskAdapter):
    """Linear layer that :class:`IsotropyLayer` approaches in training, computed directly.

    The head's outputs are fitted to the task by L-BFGS as far as `ridge` allows, and all directions
    outside the row space of the head are whitened. There are no epochs and no validation rows, so
    nothing warns if the score decreases.

    Parameters
    ----------
    <linear head>
    alpha : float, default=<alpha>
        Share of the task in the loss ``alpha * task + (1 - alpha) * (1 - IsoScore)``, in (0, 1]. It
        only has an effect where more isotropy requires a change of the head's outputs. 1 is the
        control without a penalty.
    ridge : float or "auto", default=<ridge>
        Weight, in the task loss, of the mean squared change of the head's outputs, as in
        :class:`IsotropyLayer`.
    <device>
    <verbose>

    Attributes
    ----------
    <map>
    history_ : list of dict
        One entry for each iteration, with "iteration" and "loss". Entry 0 is the start.
    ridge_ : float
        The ridge used.
    n_iter_ : int
        Number of iterations, at least 1.
    <common>

    Notes
    -----
    The highest possible IsoScore under a head of rank r is (PR(Σ_U) + d - r - 1) / (d - 1). Σ_U is
    the covariance of the r coordinates in the row space of the head, and PR is its participation
    ratio tr(Σ_U)² / tr(Σ_U²).

    References
    ----------
    "Optimizing the performance of text classification models by improving the isotropy of the
    embeddings using a joint loss function", section 3.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import ExactIsotropyLayer
    >>> from isoadapt.metrics import isoscore
    >>> X, y = make_classification(500, 10, n_informative=6, random_state=0)
    >>> layer = ExactIsotropyLayer().fit(X, y)
    >>> isoscore(layer.transform(X)) > isoscore(X)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, 1, closed="right")],
    }

    alpha: float = 0.5

    def _fit(self, problem: Problem) -> Self:
        self.ridge_ = problem.automatic_ridge if self.ridge == "auto" else float(self.ridge)
        weight, device = (1 - self.alpha) / self.alpha, resolve_device(self.device)
        with tqdm(desc="iterations", disable=not shows_progress(self.verbose)) as bar:
            map_, losses = solve_exact(problem, weight, self.ridge_, device, bar.update)
        self.history_ = [{"iteration": number, "loss": loss} for number, loss in enumerate(losses)]
        self.n_iter_ = max(len(losses) - 1, 1)
        return self._set_fitted(map_, problem.head)
