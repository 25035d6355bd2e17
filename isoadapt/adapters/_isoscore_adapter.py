"""Base class of the adapters whose penalty is IsoScore, with the exact solver."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sklearn.utils._param_validation import StrOptions

from isoadapt._utils.warn import warn
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._training._batches import n_batches
from isoadapt.adapters._training._coordinates import Coordinates, whitened_coordinates
from isoadapt.adapters._training._exact import solve_exact
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses._isoscore import fewest_points


class IsoScorePenalty(Penalty):
    """A penalty that depends on the covariance of the points only."""

    depends_on_shifts: ClassVar[bool] = False


@dataclass(eq=False, repr=False, kw_only=True)
class IsoScoreAdapter(PenalisedAdapter):
    """Base class of adapters whose penalty is IsoScore."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PenalisedAdapter._parameter_constraints,
        "bias_corrected": ["boolean"],
        "solver": [StrOptions({"minibatch", "exact"})],
    }

    bias_corrected: bool = False
    coordinates: str = "whitened"
    solver: str = "minibatch"
    ridge: float | str = "auto"
    lr_schedule: str = "linear"

    def _check_combination(self) -> None:
        super()._check_combination()
        if self.solver == "exact":
            for name, admissible in (("network", "linear"), ("head_training", "frozen")):
                holds = getattr(self, name) == admissible
                self._check_exact_condition(name, holds, repr(admissible))
        elif self._penalty_weight() and self.batch_size < self._fewest_rows():
            raise ValueError(
                f"batch_size={self.batch_size} is too small: {self._batch_limit()}, so use "
                f"batch_size={self._fewest_rows()} or more"
            )

    def _fewest_rows(self) -> int:
        """Return the number of rows that a batch needs for the penalty to have a gradient."""
        return fewest_points(0, self.bias_corrected)

    def _batch_limit(self) -> str:
        """Return a clause on the number of rows, with the other parameter that determines it."""
        limit = f"the penalty needs at least {self._fewest_rows()} rows in a batch"
        if self.bias_corrected:
            return f"{limit} (3 with bias_corrected=False)"
        return limit

    def _warn_of_small_batches(self, n_rows: int) -> None:
        """Warn if batches are too small for the IsoScore to have a gradient."""
        smallest = n_rows // n_batches(n_rows, self.batch_size)
        if self._penalty_weight() and smallest < self._fewest_rows():
            warn(
                f"{n_rows} training rows give batches of {smallest} with "
                f"batch_size={self.batch_size}, but {self._batch_limit()}, so smaller ones have "
                "none: use a larger batch_size or more rows"
            )

    def _check_exact_condition(self, name: str, holds: bool, admissible: str) -> None:
        """Raise ValueError unless a condition of solver="exact" on a parameter holds."""
        if not holds:
            raise ValueError(
                f"{name}={getattr(self, name)!r} has no exact solution: use {name}={admissible}, "
                "or solver='minibatch'"
            )

    def _make_coordinates(self, moments: Moments, head: LinearHead | None) -> Coordinates:
        if self.solver == "exact":
            return whitened_coordinates(moments, head)
        return super()._make_coordinates(moments, head)

    def _validation_share(self) -> float | None:
        return None if self.solver == "exact" else super()._validation_share()

    def _batch_key(self) -> tuple[Any, ...] | None:
        return None if self.solver == "exact" else super()._batch_key()

    def _train(self, problem: Problem) -> Self:
        if self.solver == "minibatch":
            self._warn_of_small_batches(len(problem.fitting))
            return super()._train(problem)
        self.__dict__.pop("best_epoch_", None)
        self.ridge_ = self._ridge_weight(problem)
        found = solve_exact(problem, self._penalty_weight(), self.ridge_)
        self.history_ = [
            {"iteration": number, "loss": loss} for number, loss in enumerate(found.losses)
        ]
        self.n_iter_ = max(found.n_iter, 1)
        return self._set_fitted(found.map, problem.head)
