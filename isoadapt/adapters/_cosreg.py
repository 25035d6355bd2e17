"""Adapter with cosine regularisation, the mean cosine of the adapted embeddings."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._training._problem import Penalty, Problem
from isoadapt.losses import CosRegLoss


@dataclass(eq=False, repr=False, kw_only=True)
class CosRegAdapter(WeightedPenaltyAdapter):
    """Adapter trained on the task loss plus lam times the mean cosine of the adapted embeddings.

    The mean cosine of a batch of n rows is the sum over all pairs of different rows divided by n²,
    as in :class:`~isoadapt.losses.CosRegLoss`. The penalty moves the mean of the embeddings towards
    the origin. In "raw" coordinates it hardly changes their covariance, and so their IsoScore,
    compared with a layer that is trained without a penalty.

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
        Weight λ of the penalty. A positive weight lowers the cosines. 0 is the control without a
        penalty.

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
    Gao et al. (2019), "Representation Degeneration Problem in Training Natural Language
    Generation Models". Rudman and Eickhoff, "Stable Anisotropic Regularization", section 5, compare
    I-STAR with it.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import CosRegAdapter
    >>> from isoadapt.metrics import mean_cosine_similarity
    >>> X, y = make_classification(500, 10, shift=1.0, random_state=0)
    >>> adapter = CosRegAdapter(random_state=0).fit(X, y)
    >>> mean_cosine_similarity(adapter.transform(X)) < mean_cosine_similarity(X)
    True
    """

    _batches_folds: ClassVar[bool] = True

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return Penalty(CosRegLoss(), shared=True)
