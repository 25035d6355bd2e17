"""Adapter with spectrum control, a prescribed decay of the singular values."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt.adapters._linalg import descending_eigh
from isoadapt.adapters._maps import Floats
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._rows import Batches
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._problem import Penalty, Problem
from isoadapt.geometry import Moments
from isoadapt.losses import SpectrumControlLoss

_SVD_INTERVAL = 10  # steps between two decompositions


@dataclass(eq=False, repr=False, kw_only=True)
class SpectrumControlAdapter(WeightedPenaltyAdapter):
    """Adapter whose singular values of the adapted embeddings are drawn to a prescribed decay.

    The loss is that of the task plus ``lam * sum_k (σ_k - c_1 f(k))²``. The σ_k are the singular
    values of the n adapted embeddings divided by √n, and c_1 is the largest one before training.
    For a linear network they are those of all training rows, computed from the second moment. The
    network "mlp" uses those of each batch. All are in units of the size of the embeddings.

    Parameters
    ----------
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default="logistic"
        The linear head that is applied to the adapted embeddings, as in :class:`IsotropyLayer`.
        With None, the adapter is trained for the penalty alone.
    balance : {"ema", "cumulative"} or None, default=None
        How the task loss and the penalty are balanced. "ema" scales both to a common size by their
        moving means, "cumulative" by their means over all steps so far, see
        :class:`~isoadapt.losses.JointLoss`. None adds the two without scaling.
    smoothing : float, default=0.15
        Smoothing factor of the moving means of "ema", in (0, 1]. A larger value gives more weight
        to recent steps.
    network : {"linear", "mlp"}, default="linear"
        "linear" trains one linear layer. "mlp" adds a branch with one hidden layer of the same
        width; the fitted map is then not affine and has no inverse.
    head_training : {"frozen", "joint", "alternating"}, default="frozen"
        "frozen" keeps the head as it is. "joint" trains it together with the adapter.
        "alternating" trains the adapter in odd epochs and the head in even ones.
    coordinates : {"whitened", "raw"}, default="whitened"
        Coordinates in which the adapter is trained, as in :class:`IsotropyLayer`. The fitted map
        applies to the original embeddings in either case.
    ridge : float or "auto", default="auto"
        Weight, in the task loss, of the mean squared change of the head's outputs, as in
        :class:`IsotropyLayer`. 0, as in the papers, allows any change, "auto" estimates it.
    lr : float or "auto", default="auto"
        Learning rate of AdamW. "auto" is 0.001, with one exception: if one linear layer is trained
        in whitened coordinates with a frozen head, it is 0.01 for the outputs outside the row space
        of the head.
    lr_schedule : {"linear", "constant"}, default="linear"
        "linear" lowers the learning rate from epoch to epoch, from `lr` in the first epoch to
        ``lr / max_epochs`` in the last. "constant" keeps it.
    batch_size : int, default=64
        Maximum number of rows in a mini-batch.
    max_epochs : int, default=30
        Maximum number of passes over the training rows.
    weight_decay : float, default=0.0
        Weight decay of AdamW.
    validation_fraction : float or None, default=0.3
        Fraction of the distinct rows, in [0, 1), that is held out to choose the epoch, as in
        :class:`IsotropyLayer`. If 0 or None, the last epoch is kept.
    patience : int or None, default=10
        Training stops after this many epochs in a row that did not replace the epoch to be kept.
        None never stops early.
    scoring : str, callable or None, default=None
        Metric that chooses the epoch, as in :class:`IsotropyLayer`. None is accuracy or R².
    device : str, default="auto"
        Device to train on, such as "cpu" or "cuda"; "auto" is the GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of the validation split, the shuffling, the bootstrap and the initial weights of the
        hidden layer. With None, every fit draws a new seed.
    verbose : int, default=0
        If above 0, a progress bar is shown on a terminal.
    lam : float, default=1.0
        Weight λ >= 0 of the penalty. 0 is the control without a penalty.
    decay : {"polynomial", "exponential"}, default="polynomial"
        Prescribed decay: f(k) = k^(-1/2) for "polynomial", exp(-k/100) for "exponential".

    Attributes
    ----------
    map_ : Affine or ResidualMLP
        The fitted map.
    head_ : LinearHead or None
        The head that is applied to the adapted embeddings. It differs from the initial one only if
        `head_training` is not "frozen".
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels; only if the head is a classifier.
    history_ : list of dict
        One entry for each epoch of the fit that chose the epoch, as in :class:`IsotropyLayer`.
    ridge_ : float
        The ridge used; that of the second fit if there was one.
    n_iter_ : int
        Number of epochs run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1.
    n_features_in_ : int
        Number of features of the embeddings.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features; only if X has feature names that are all strings.

    References
    ----------
    Wang et al. (2020), "Improving Neural Language Generation with Spectrum Control".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import SpectrumControlAdapter
    >>> from isoadapt.metrics import cumulative_explained_variance
    >>> X, y = make_classification(500, 10, n_informative=3, random_state=0)
    >>> adapter = SpectrumControlAdapter("logistic", random_state=0).fit(X, y)
    >>> adapter.transform(X).shape
    (500, 10)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **WeightedPenaltyAdapter._parameter_constraints,
        "decay": [StrOptions({"polynomial", "exponential"})],
        "lam": [Interval(Real, 0, None, closed="left")],
    }

    decay: str = "polynomial"
    coordinates: str = "whitened"
    ridge: float | str = "auto"
    lr_schedule: str = "linear"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        largest = torch.linalg.eigvalsh(problem.moments.second_moment())[-1]
        c1 = float(largest.sqrt()) / problem.coordinates.scale
        linear = self.network == "linear"
        loss = SpectrumControlLoss(self.decay, c1=c1, per_row=not linear).to(device)
        if not linear:
            return Penalty(loss)
        inputs = _second_moment_root(problem.moments.mapped(*problem.coordinates.into))
        return _ExactSpectrum(loss, torch.as_tensor(inputs, dtype=torch.float32, device=device))


class _ExactSpectrum(Penalty):
    """The penalty of all outputs of a linear network, bounded from above between decompositions.

    Let M be the second moment of the inputs with a constant 1. The singular values of the outputs
    are those of B = [A c] M^(1/2). For orthonormal U and V, ⟨B, U diag(t) Vᵀ⟩ <= Σ σ_k t_k (von
    Neumann), so ‖B - U diag(t) Vᵀ‖² is an upper bound of the penalty, with the same value and
    gradient if U and V are the singular vectors of B. These are updated every few steps, and
    whenever gradients are disabled.
    """

    def __init__(self, loss: SpectrumControlLoss, root: Tensor) -> None:
        super().__init__(loss)
        self.target = loss.target(len(root) - 1)
        self.root, self.step = root, 0

    def join(self, others: Sequence["_ExactSpectrum"]) -> Penalty | None:
        return self if all(torch.equal(each.root, self.root) for each in others) else None

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        self.step = 0

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        outputs = torch.cat([network.weight, network.bias.mT], -1) @ self.root
        if self.step % _SVD_INTERVAL == 0 or not torch.is_grad_enabled():
            U, _, Vh = torch.linalg.svd(outputs.detach().double(), full_matrices=False)
            self.nearest = ((U * self.target) @ Vh).to(outputs)
        self.step += torch.is_grad_enabled()
        return (outputs - self.nearest).square().sum((-2, -1))


def _second_moment_root(moments: Moments) -> Floats:
    """Return a root (d + 1, d + 1) of the second moment of the rows with a constant 1 appended."""
    mean = moments.mean.numpy()
    second = np.block(
        [[moments.second_moment().numpy(), mean[:, None]], [mean[None], np.ones((1, 1))]]
    )
    eigenvalues, vectors = descending_eigh(second)
    return vectors * np.sqrt(eigenvalues)
