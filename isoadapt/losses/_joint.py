"""Joint loss: a task loss plus a weighted penalty, optionally balanced by their moving means."""

from typing import Any

import torch
from torch import Tensor, nn

_FLOOR = 1e-3  # smaller means are raised to it, because losses are divided by their means


class JointLoss(nn.Module):
    """Task loss plus weighted penalty, optionally scaled to the same average size.

    Parameters
    ----------
    weight : float or Tensor of shape (n_members,)
        Weight of the penalty. A negative weight rewards it.
    balance : {"ema", "cumulative"} or None, default=None
        Moving means that balance the two losses, see Notes: "ema" has s = `smoothing`, "cumulative"
        s = 1, which gives the plain mean over all steps. None does not balance.
    smoothing : float or Tensor of shape (n_members,), default=0.15
        Smoothing s of "ema", in (0, 1].

    Attributes
    ----------
    means : Tensor of shape (..., 2)
        Moving means of the absolute task loss and of the absolute penalty.
    n_steps : Tensor of shape ()
        Number of training steps seen. Steps whose losses are not finite count, but do not change
        the means.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Notes
    -----
    Without balancing, the joint loss is ``task_loss + weight * penalty``. With balancing, each of
    the two losses L_i is first multiplied by L̄ / L̄_i, where L̄_i is its moving mean and L̄ the
    average of both means. The means start at the first losses. At step k = 0, 1, … they move
    towards the current losses by the fraction ``s / (1 + k)``, before they are used and in training
    mode only. They carry no gradient.

    References
    ----------
    "Optimizing the performance of text classification models by improving the isotropy of the
    embeddings using a joint loss function", equations 2 and 3.

    Examples
    --------
    >>> import torch
    >>> from isoadapt.losses import JointLoss
    >>> JointLoss(weight=2.0)(torch.tensor(1.0), torch.tensor(3.0))
    tensor(7.)
    >>> JointLoss(weight=1.0, balance="ema")(torch.tensor(1.0), torch.tensor(3.0))
    tensor(4.)
    """

    means: Tensor
    n_steps: Tensor
    weight: Tensor
    smoothing: Tensor

    def __init__(
        self, weight: float | Tensor, balance: str | None = None, smoothing: float | Tensor = 0.15
    ) -> None:
        super().__init__()
        if balance not in ("ema", "cumulative", None):
            raise ValueError(f"balance={balance!r} must be 'ema', 'cumulative' or None")
        rates = torch.as_tensor(smoothing, dtype=torch.float64)
        if not bool(((rates > 0) & (rates <= 1)).all()):
            raise ValueError(f"smoothing={smoothing!r} must lie in (0, 1]")
        self.balance = balance
        rates = torch.ones_like(rates) if balance == "cumulative" else rates
        self.register_buffer("smoothing", rates, persistent=False)
        self.register_buffer("weight", torch.as_tensor(weight, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(2, dtype=torch.float32))
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.long))
        self._step = 0  # n_steps on the host, so that reading it does not synchronise the device

    def forward(self, task_loss: Tensor, penalty: Tensor) -> Tensor:
        """Combine the task loss and the penalty (...) of each member to one loss (...).

        TypeError is raised if one of them is not a floating-point tensor, and ValueError if they
        differ in shape, for example if the penalty was not reduced to a scalar.
        """
        _check_losses(task_loss, penalty)
        weight = self.weight.to(penalty.dtype)
        if self.balance is None:
            return task_loss + weight * penalty
        if self.training:
            self._update_means(torch.stack([task_loss.detach(), penalty.detach()], -1).abs())
        means = self.means.clamp(min=_FLOOR)
        task_factor, penalty_factor = (means.mean(-1, keepdim=True) / means).unbind(-1)
        return torch.addcmul(task_loss * task_factor, penalty, weight * penalty_factor)

    def _update_means(self, sizes: Tensor) -> None:
        """Move the means towards `sizes` (..., 2), the absolute losses of a step, if finite."""
        finite, means = (sizes < torch.inf).all(-1, keepdim=True), self.means
        if self._step:
            rate = (self.smoothing / (1 + self._step)).to(sizes.dtype).unsqueeze(-1)
            moved = torch.where(means.isnan(), sizes, means.lerp(sizes, rate))
            self.means = torch.where(finite, moved, means)
        else:
            self.means = torch.where(finite, sizes, torch.nan)  # NaN until a step is finite
        self._step += 1
        self.n_steps.add_(1)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}means" in state:
            self.means = torch.empty_like(state[f"{prefix}means"], device=self.means.device)
        super()._load_from_state_dict(state, prefix, *rest)
        self._step = int(self.n_steps)


def _check_losses(task_loss: Any, penalty: Any) -> None:
    """Raise if a loss is not a floating-point tensor or the shapes differ."""
    for name, loss in (("task_loss", task_loss), ("penalty", penalty)):
        if not isinstance(loss, Tensor) or not loss.is_floating_point():
            kind = f"tensor of {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"{name} is a {kind}; a floating-point tensor is needed")
    if penalty.shape != task_loss.shape:
        raise ValueError(
            f"penalty has shape {tuple(penalty.shape)} and task_loss {tuple(task_loss.shape)}: "
            "reduce the penalty to one number, for example with .mean()"
        )
