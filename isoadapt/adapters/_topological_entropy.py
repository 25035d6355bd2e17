"""Adapter that raises the persistent entropy of the adapted embeddings."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from isoadapt._utils.messages import warn
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._rows import n_batches
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._problem import Penalty, Problem
from isoadapt.losses import PersistentEntropyLoss
from isoadapt.losses._persistent_entropy import MIN_POINTS

_MAX_VALIDATION_ROWS = 3000  # of which the penalty is computed after an epoch


@dataclass(eq=False, repr=False, kw_only=True)
class TopologicalEntropyAdapter(WeightedPenaltyAdapter):
    """Adapter trained on the task loss minus lam times the persistent entropy of its outputs.

    The persistent entropy is that of the bars of each class in a batch. The bars are the lifetimes
    of the connected components of the class, which are the lengths of the edges of its minimum
    spanning tree. The entropy is large if the bars have similar lengths, so that raising it shrinks
    the longest ones. An epoch is validated on at most 3,000 of the validation rows, because the
    cost of the tree grows with the square of their number.

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
    coordinates : {"whitened", "raw"}, default="raw"
        Coordinates in which the adapter is trained, as in :class:`IsotropyLayer`. The fitted map
        applies to the original embeddings in either case.
    ridge : float or "auto", default=0.0
        Weight, in the task loss, of the mean squared change of the head's outputs, as in
        :class:`IsotropyLayer`. 0, as in the papers, allows any change, "auto" estimates it.
    lr : float or "auto", default="auto"
        Learning rate of AdamW. "auto" is 0.001, with one exception: if one linear layer is trained
        in whitened coordinates with a frozen head, it is 0.01 for the outputs outside the row space
        of the head.
    lr_schedule : {"linear", "constant"}, default="constant"
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
        Weight λ of the persistent entropy. A positive weight raises the entropy. 0 is the control
        without a penalty.
    bars : {"selected", "all"}, default="selected"
        "selected" uses the significant bars of each class, "all" uses all of them.

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
    "Shrink the longest: improving latent space isotropy with simplicial geometry". The bars are
    selected as in Atienza, Gonzalez-Diaz and Rucco (2019), "Persistent entropy for separating
    topological features from noise in Vietoris-Rips complexes".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import TopologicalEntropyAdapter
    >>> X, y = make_classification(200, 10, random_state=0)
    >>> TopologicalEntropyAdapter(max_epochs=3).fit_transform(X, y).shape
    (200, 10)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **WeightedPenaltyAdapter._parameter_constraints,
        "bars": [StrOptions({"selected", "all"})],
    }

    bars: str = "selected"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return _ClasswiseEntropy(PersistentEntropyLoss(self.bars), shared=True)

    def _train(self, problem: Problem) -> Self:
        self._warn_of_small_classes(problem)
        return super()._train(problem)

    def _warn_of_small_classes(self, problem: Problem) -> None:
        """Warn if most rows are of classes that have too few rows in a batch to be counted."""
        rows, targets = problem.fitting, problem.targets
        counts = np.array([len(rows)])
        if targets is not None and targets.ndim == 1:
            counts = np.unique_counts(targets[rows]).counts
        small = counts < MIN_POINTS * n_batches(len(rows), self.batch_size)
        if counts[small].sum() > len(rows) / 2:
            warn(
                f"{small.sum()} of the {len(counts)} classes have on average fewer than "
                f"{MIN_POINTS} rows in a batch. A class is skipped in such a batch, so the penalty "
                f"hardly acts: use a batch_size larger than {self.batch_size}"
            )


class _ClasswiseEntropy(Penalty):
    """Minus the persistent entropy of each class; in validation, of evenly spaced rows if many."""

    depends_on_shifts = False

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        labels = targets if targets is not None and targets.dtype == torch.int64 else None
        if not torch.is_grad_enabled():  # validation; the cost of the tree is quadratic in the rows
            step = -(-points.shape[1] // _MAX_VALIDATION_ROWS)
            points, labels = points[:, ::step], None if labels is None else labels[..., ::step]
        if labels is None or labels.ndim == 1:
            return self.loss(points, labels)
        return torch.stack([self.loss(*member) for member in zip(points, labels, strict=True)])
