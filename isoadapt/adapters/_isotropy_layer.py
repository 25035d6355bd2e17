"""Adapter with the Isotropy Layer."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval

from isoadapt.adapters._penalised import IsoScoreAdapter, IsoScorePenalty
from isoadapt.adapters._training._problem import Penalty, Problem
from isoadapt.losses import IsoScoreLoss


@dataclass(eq=False, repr=False, kw_only=True)
class IsotropyLayer(IsoScoreAdapter):
    """Linear layer between a frozen encoder and its frozen head, trained for isotropy and the task.

    The loss is ``alpha * task + (1 - alpha) * penalty``. The penalty is -log IsoScore of the
    adapted embeddings. The two losses are balanced by their moving means. The layer starts as the
    identity.

    Parameters
    ----------
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default="logistic"
        The linear head that is applied to the adapted embeddings.

        - A LinearHead, or a fitted estimator in ``sklearn.frozen.FrozenEstimator``, is used as it
          is.
        - Any other estimator, such as ``LogisticRegression(C=0.1)``, is cloned and fitted to the
          embeddings of the training rows before the adapter is trained, even if it has been fitted
          already. Its own regularisation depends on the scale of the embeddings.
        - "logistic" and "ridge" are probes, fitted in the same way. Cross-validation within the
          rows chooses their penalty, which does not depend on the scale of the embeddings.
        - With None, the adapter is trained for the penalty alone.

        In a cross-validation, estimators and probes are fitted to the training rows of each fold.
        A frozen head that was fitted to all rows has used the validation rows too, so its scores
        are too high.
    balance : {"ema", "cumulative"} or None, default="ema"
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
        Coordinates in which the adapter is trained. The fitted map applies to the original
        embeddings in either case. "raw" is unsuitable if the mean of the embeddings is much larger
        than their spread; centre the embeddings first. Both are in units of the size of the
        embeddings, so training does not depend on their scale.
    ridge : float or "auto", default="auto"
        Weight, in the task loss, of the mean squared change of the head's outputs relative to the
        embeddings before training. It keeps predictions stable if there are few rows: a larger
        ridge allows less change, and 0, as in the papers, allows any change. Logits are compared
        after subtracting their mean over the classes, and the squares are summed over the classes.
        Outputs of a regression are in units of the standard deviations of the targets; their
        squares, and those of the logits of a multi-label head, are averaged over the outputs.
        "auto" estimates the ridge from left-out rows, as :ref:`automatic-ridge` describes.
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
        Fraction of the distinct rows, in [0, 1), that is held out to choose the epoch, stratified
        for classifiers. If the head is fitted here and there are fewer than 10 rows for each
        dimension, head and adapter are then fitted a second time, to all rows and for
        ``best_epoch_`` epochs, without validation. If 0 or None, or if either part would have fewer
        than 4 rows, the adapter is trained on all rows and the last epoch is kept.
    patience : int or None, default=10
        Training stops after this many epochs in a row that did not replace the epoch to be kept.
        None never stops early.
    scoring : str, callable or None, default=None
        Metric of the task, as in scikit-learn. None is accuracy or R². The last epoch whose score
        is within one standard error of the best score is kept, with or without a penalty.
        A warning is issued if the embeddings before training score higher than that epoch by more
        than one standard error.
    device : str, default="auto"
        Device to train on, such as "cpu" or "cuda"; "auto" is the GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of the validation split, the shuffling, the bootstrap and the initial weights of the
        hidden layer. With None, every fit draws a new seed.
    verbose : int, default=0
        If above 0, a progress bar is shown on a terminal.
    bias_corrected : bool, default=True
        Whether to correct most of the bias of the penalty in small batches. The penalty then needs
        batches of at least 4 rows; otherwise it needs 3.
    solver : {"minibatch", "exact"}, default="minibatch"
        "minibatch" is the training of the paper. "exact" computes the limit of that training
        directly: the head's outputs are fitted to the task as far as `ridge` allows, and all
        directions outside the row space of the head are whitened. It uses all rows, without
        validation rows and without `balance`, and does not warn if the score decreases. With
        "exact", `alpha` only has an effect where more isotropy requires a change of the head's
        outputs.
    alpha : float, default=0.5
        Share of the task in the loss, in (0, 1]. 1 is the control without a penalty.

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
        One entry for each epoch of the fit that chose the epoch, with "epoch", "train_loss" and
        "dur" (seconds). With validation rows, an entry also has "valid_score" (the metric of the
        task) and "valid_cost" (the weighted penalty of the validation rows, for which moments such
        as Σ_S are those of the training rows), and a first entry for epoch 0, before training, has
        only these. With the exact solver, an entry has "iteration" and "loss".
    ridge_ : float
        The ridge used; that of the second fit if there was one.
    n_iter_ : int
        Number of epochs or iterations run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1; not with the exact solver.
    n_features_in_ : int
        Number of features of the embeddings.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features; only if X has feature names that are all strings.

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
        **IsoScoreAdapter._parameter_constraints,
        "alpha": [Interval(Real, 0, 1, closed="right")],
    }
    _batchable_params: ClassVar[frozenset[str]] = IsoScoreAdapter._batchable_params | {"alpha"}
    _batches_folds: ClassVar[bool] = True

    alpha: float = 0.5
    balance: str | None = "ema"
    bias_corrected: bool = True

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(form="log", bias_corrected=self.bias_corrected)
        return IsoScorePenalty(loss, shared=True)

    def _penalty_weight(self) -> float:
        return (1 - self.alpha) / self.alpha
