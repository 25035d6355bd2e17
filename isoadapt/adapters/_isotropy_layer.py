"""The Isotropy Layer."""

from numbers import Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval

from isoadapt.adapters._minibatch import Penalty
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.losses import IsoScoreLoss


class IsotropyLayer(PenalisedAdapter):
    """A layer between a frozen encoder and its frozen head, trained to be isotropic and right.

    The loss is ``alpha * task + (1 - alpha) * penalty`` with the penalty -log IsoScore of the
    layer's outputs, the two balanced by their moving means. The layer starts as the identity.

    Parameters
    ----------
    head : LinearHead, fitted linear estimator, {"logistic", "ridge"} or None, default="logistic"
        What reads the embeddings. A name fits it to the embeddings first; None leaves the
        penalty alone. Wrap a fitted estimator in ``sklearn.frozen.FrozenEstimator``, so that it
        survives ``clone``.
    alpha : float, default=0.5
        Share of the task in the loss, in (0, 1]; 1 is the control without a penalty.
    balance : {"ema", "cumulative"} or None, default="ema"
        How the losses are balanced, see :class:`~isoadapt.losses.JointLoss`.
    smoothing : float, default=0.15
        How fast the moving means of "ema" follow, in (0, 1].
    bias_corrected : bool, default=True
        Take the bias of small batches out of the penalty.
    network : {"linear", "mlp"}, default="linear"
        One linear layer, or that plus a hidden layer of the same width beside it.
    head_training : {"frozen", "joint", "alternating"}, default="frozen"
        Whether the head is trained too: with the layer, or in every other epoch.
    coordinates : {"whitened", "raw"}, default="whitened"
        Coordinates of the embeddings in which the layer is trained; the fitted map is in the
        embeddings' own either way.
    solver : {"minibatch", "exact"}, default="minibatch"
        "minibatch" is the paper's, stopped early on its path. "exact" goes to the end of that
        path at once: a ridge-held fit of what the head sees, and all it cannot see whitened. It
        uses all rows, no validation split, and no balance; `alpha` hardly matters there.
    ridge : float, default=1e-2
        With "exact", weight of the mean squared change of what the head sees.
    lr : float, default=1e-3
        Learning rate of AdamW.
    batch_size : int, default=64
        Largest size of a mini-batch.
    max_epochs : int, default=30
        Passes over the training rows at most.
    weight_decay : float, default=0.0
        Weight decay of AdamW.
    validation_fraction : float or None, default=0.3
        Share of the rows that chooses the epoch, in [0, 1), stratified for classifiers. 0 or
        None keeps the last epoch. Fewer than 4 rows on a side: all rows serve for both.
    patience : int, default=10
        Epochs without a new choice before training stops.
    scoring : str, callable or None, default=None
        The task's metric, as in scikit-learn; None: accuracy or R². Among the epochs within one
        bootstrap standard error of the best, the most isotropic is kept.
    device : str, default="auto"
        Where to train: "cpu", "cuda" and so on; "auto" is the GPU where there is one.
    random_state : int, RandomState instance or None, default=None
        Seeds split, shuffling, bootstrap and the start of a hidden layer.
    verbose : int, default=0
        Above 0, a progress bar is shown on a terminal.

    Attributes
    ----------
    map_ : Affine or ResidualMLP
        The fitted map.
    head_ : LinearHead or None
        The head.
    history_ : list of dict
        One entry for each epoch: "epoch", "train_loss", "valid_score" (the task's metric),
        "valid_cost" (the weighted penalty on the validation rows) and "dur" (seconds). With
        "exact" one for each iteration: "iteration" and "loss".
    n_iter_ : int
        Epochs or iterations run.
    best_epoch_ : int
        Epoch kept, from 1; with "minibatch" only.

    Notes
    -----
    The steps of "minibatch" are small. Where other programs keep the cores busy, more than one
    thread makes them much slower: ``torch.set_num_threads(1)`` helps then.

    With "exact" the best attainable IsoScore under a head of rank r is
    (PR(Σ_U) + d - r - 1) / (d - 1), with Σ_U the covariance of the r seen coordinates.

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
        "alpha": [Interval(Real, 0, 1, closed="right")],
        "bias_corrected": ["boolean"],
    }

    def __init__(
        self,
        head: Any = "logistic",
        *,
        alpha: float = 0.5,
        balance: str | None = "ema",
        smoothing: float = 0.15,
        bias_corrected: bool = True,
        network: str = "linear",
        head_training: str = "frozen",
        coordinates: str = "whitened",
        solver: str = "minibatch",
        ridge: float = 1e-2,
        lr: float = 1e-3,
        batch_size: int = 64,
        max_epochs: int = 30,
        weight_decay: float = 0.0,
        validation_fraction: float | None = 0.3,
        patience: int = 10,
        scoring: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.alpha = alpha
        self.balance = balance
        self.smoothing = smoothing
        self.bias_corrected = bias_corrected
        self.network = network
        self.head_training = head_training
        self.coordinates = coordinates
        self.solver = solver
        self.ridge = ridge
        self.lr = lr
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.scoring = scoring
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _make_penalty(self) -> Penalty:
        if self.bias_corrected and self.batch_size < 4:
            raise ValueError(
                f"batch_size={self.batch_size} is too small for bias_corrected=True, which needs 4 "
                "rows in a batch: use 4 or more, or bias_corrected=False"
            )
        loss = IsoScoreLoss(reduction="log", bias_corrected=self.bias_corrected)
        return lambda points, targets, network: loss(points)

    def _penalty_weight(self) -> float:
        return (1 - self.alpha) / self.alpha
