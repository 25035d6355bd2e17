"""A normalising flow from embeddings to the standard normal distribution."""

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.metrics import get_scorer_names
from sklearn.utils._param_validation import Interval, StrOptions
from skorch.callbacks import GradientNormClipping

from isoadapt._utils.devices import resolve_device, to_tensor
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.adapters._base import BaseAdapter, make_random_state, restore_on_failure
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._spread import check_spread
from isoadapt.adapters._training._batches import Batches, Rows
from isoadapt.adapters._training._loop import Judge, epochs_bar, run_epochs
from isoadapt.adapters._training._net import AdapterNet, classification_loss, regression_loss
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._selection import Run, Selection
from isoadapt.adapters._training._split import split_rows
from isoadapt.adapters._training._task_score import TargetUnits, make_score
from isoadapt.heads import LinearHead, needs_fit
from isoadapt.losses import JointLoss

if TYPE_CHECKING:
    from isoadapt.adapters._flow._map import Coupling, FlowMap
    from isoadapt.adapters._flow._network import FlowNetwork, FlowObjective

_MAX_NORM = 1.0
_START_ROWS = 2048  # ActNorms start from so many rows, or all
_CALIBRATED = 32  # fewer rows tell too little of the outputs' variances


class FlowAdapter(BaseAdapter):
    """Normalising flow: an invertible network that makes embeddings standard normal.

    Maximum likelihood of embeddings h under z = f(h) ~ N(0, I). The flow f is a chain of blocks,
    each ActNorm, permutation and coupling, and a last ActNorm. Couplings shift one half of the
    coordinates, and scale it if affine, by what a small network makes of the other half. The flow
    starts as the standardisation of the features.

    Without `alpha` no label is used; from 32 rows on, the last ActNorm ends at its
    maximum-likelihood value, so that the outputs of the rows it was fitted to have mean 0 and
    variance 1; and a head is fitted to the outputs. With `alpha` the loss is
    ``alpha * task + (1 - alpha) * bits`` under a frozen head that reads the outputs. The head's
    weights are converted to the units of the standardised embeddings first, so that the flow
    starts with the head's own predictions.

    The outputs do not depend on the scale of the embeddings. Features without variance are only
    centred, and divided by the average spread.

    Parameters
    ----------
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default=None
        The head that predicts on the outputs, as in :class:`IsotropyLayer`; None makes a
        transformer only. Without `alpha`, the estimator or the named probe is fitted to the
        outputs, and in place of a frozen head a probe of its kind.
    n_blocks : int, default=8
        Number of blocks.
    hidden : int, default=128
        Width of the hidden layer in each coupling.
    coupling : {"additive", "affine"}, default="affine"
        "additive" shifts and keeps volumes; "affine" also scales, by factors from 0.61 to 1.65.
    alpha : float, default=None
        Share of the task in the loss, in (0, 1]; needs a head.
    balance : {"ema", "cumulative"} or None, default="ema"
        With `alpha`, how the losses are balanced, see :class:`~isoadapt.losses.JointLoss`.
    smoothing : float, default=0.15
        How fast the moving means of "ema" follow, in (0, 1].
    lr : float, default=1e-3
        Learning rate of Adam.
    batch_size : int, default=128
        Largest size of a mini-batch.
    max_epochs : int, default=15
        Passes over the training rows at most.
    validation_fraction : float or None, default=0.3
        Share of the rows that chooses the epoch, in [0, 1), stratified for classifiers with
        `alpha`. They have no part in training before the epoch is chosen; without `alpha`, the
        last ActNorm's value and the head are then computed from all rows. With 0 or None, and
        with fewer than 4 rows on a side, all rows are trained on and the last epoch is kept.
    patience : int or None, default=10
        Epochs without a new choice before training stops; None never stops early.
    scoring : str, callable or None, default=None
        With `alpha`, the task's metric, as in scikit-learn; None: accuracy or R².
    device : str, default="auto"
        Where to train: "cpu", "cuda" and so on; "auto" is the GPU where there is one.
    random_state : int, RandomState instance or None, default=None
        Seeds split, permutations, start of the network, shuffling and bootstrap.
    verbose : int, default=0
        Above 0, a progress bar is shown on a terminal.

    Attributes
    ----------
    map_ : FlowMap
        The fitted flow, float64 arrays.
    head_ : LinearHead or None
        The head that reads its outputs.
    history_ : list of dict
        One entry for each epoch: "epoch", "train_loss" and "dur" (seconds); with a validation
        split also "valid_cost", the bits/dim of the validation rows after standardisation
        (weighted with ``(1 - alpha) / alpha``), and "valid_score", the task's metric with
        `alpha`, minus the cost without.
    n_iter_ : int
        Epochs run.
    best_epoch_ : int
        Epoch kept, from 1: the one with the fewest bits/dim, with `alpha` among those within one
        bootstrap standard error of the best score.

    Notes
    -----
    The flow is trained in float32 and evaluated in float64; `inverse_transform` returns
    embeddings up to rounding. Bits/dim of rows X are
    ``-adapter.score_samples(X) / (X.shape[1] * np.log(2))``. On a CPU, small steps of training
    run in one thread, as those of :class:`IsotropyLayer` do.

    References
    ----------
    "On the sentence embeddings from pre-trained language models" trains such a flow from
    sentence embeddings to a normal distribution; "Glow: generative flow with invertible 1×1
    convolutions" has ActNorm, "NICE: non-linear independent components estimation" the additive
    coupling.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import FlowAdapter
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> X = np.column_stack([x[:, 0], x[:, 0] ** 2 + 0.1 * x[:, 1]])
    >>> flow = FlowAdapter(max_epochs=5, random_state=0).fit(X)
    >>> Z = flow.transform(X)
    >>> bool(np.allclose(Z.mean(axis=0), 0) and np.allclose(Z.std(axis=0), 1))
    True
    >>> bool(np.allclose(flow.inverse_transform(Z), X))
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseAdapter._parameter_constraints,
        "n_blocks": [Interval(Integral, 1, None, closed="left")],
        "hidden": [Interval(Integral, 1, None, closed="left")],
        "coupling": [StrOptions({"additive", "affine"})],
        "alpha": [Interval(Real, 0, 1, closed="right"), None],
        "balance": [StrOptions({"ema", "cumulative"}), None],
        "smoothing": [Interval(Real, 0, 1, closed="right")],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left"), None],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "scoring": [StrOptions(set(get_scorer_names())), callable, None],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        head: Any = None,
        *,
        n_blocks: int = 8,
        hidden: int = 128,
        coupling: str = "affine",
        alpha: float | None = None,
        balance: str | None = "ema",
        smoothing: float = 0.15,
        lr: float = 1e-3,
        batch_size: int = 128,
        max_epochs: int = 15,
        validation_fraction: float | None = 0.3,
        patience: int | None = 10,
        scoring: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.n_blocks = n_blocks
        self.hidden = hidden
        self.coupling = coupling
        self.alpha = alpha
        self.balance = balance
        self.smoothing = smoothing
        self.lr = lr
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.scoring = scoring
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    @restore_on_failure
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Fit to embeddings.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; not used where ``head`` is None.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        ValueError
            If X is constant or not finite, if `alpha` is given without a head, if y has labels
            unknown to the head, or if training diverges.
        """
        with one_blas_thread_if_small(X):
            return self._fit(X, y)

    def _fit(self, X: ArrayLike, y: ArrayLike | None) -> Self:
        self._check_alpha()
        rows, labels = self._check_fit_input(X, y)
        check_spread(rows)
        refit = self._refits_head()
        if refit and not needs_fit(self.head):
            self._resolve_head(rows, labels)  # refuses one of another width before training
        module, head, run = self._train(rows, None if self.alpha is None else labels)
        map_ = self._take_map(module, rows)
        if refit:
            head = self._fit_head(map_rows(map_, rows), labels)
        self.best_epoch_ = run.best_epoch
        self.n_iter_ = len(run.history)
        self.history_ = run.history
        return self._set_fitted(map_, head)

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log-likelihood of each row under the flow.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log-densities in nats.
        """
        rows = self._check_rows(X)
        return map_rows(cast("FlowMap", self.map_).log_likelihood, rows)

    def _refits_head(self) -> bool:
        return self.head is not None and self.alpha is None

    def _maps_affinely(self) -> bool:
        return False

    def _maps_back(self) -> bool:
        return True

    def _check_alpha(self) -> None:
        if self.alpha is not None and self.head is None:
            raise ValueError(
                f"alpha={self.alpha!r} needs a head whose task loss joins the likelihood, but "
                "head=None: pass a head, or alpha=None to train without labels"
            )

    def _train(
        self, X: NDArray[Any], y: NDArray[Any] | None
    ) -> tuple["FlowObjective", LinearHead | None, Run]:
        """Train, with the head's task where there are labels, and tell how it went."""
        rng = make_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31)))
        device = resolve_device(self.device)
        labels = y if self._head_kind() == "classifier" else None
        fitting, validating = split_rows(len(X), labels, self.validation_fraction, rng)
        check_spread(X[fitting], "rows that are trained on")
        network = self._make_network(X[rng.permutation(fitting)[:_START_ROWS]], generator, device)
        head, targets, score, units = None, None, None, TargetUnits.of(None)
        if y is not None:
            own = cast(LinearHead, self._resolve_head(X[fitting], y[fitting]))
            head, targets = network.read_by(own), own.targets(y)
            units = TargetUnits.of(targets[fitting])
        module = self._make_module(network, X, None if head is None else units.head(head))
        values = units.targets(targets)
        y_there = None if values is None else to_tensor(values, device)
        numbers = Rows(torch.arange(len(X), device=device), y_there)
        judge, run = None, Run(None)
        if validating is not None:
            if head is not None and y is not None:
                score = make_score(head, y[validating], self.scoring, units)
            selection = Selection(score, self._bits_weight(), self.patience, rng)
            there = torch.from_numpy(validating).to(device)
            judge, run = Judge(numbers, there, [selection], counts_start=False), Run(selection)
        index = torch.from_numpy(fitting).to(device)
        batches = Batches(numbers, index, self.batch_size, [generator])
        net = self._make_net(module, judge)
        with epochs_bar(self.max_epochs, self.verbose) as bar:
            run_epochs(net, batches, [run], judge, self.max_epochs, tick=lambda _: bar.update())
        return net.module_, head, run

    def _bits_weight(self) -> float:
        return 1.0 if self.alpha is None else (1 - self.alpha) / self.alpha

    def _make_network(
        self, X: NDArray[Any], generator: torch.Generator, device: torch.device
    ) -> "FlowNetwork":
        """Make the flow, started from rows."""
        from isoadapt.adapters._flow._network import FlowNetwork

        coupling = cast("Coupling", self.coupling)
        network = FlowNetwork(X.shape[1], self.n_blocks, self.hidden, coupling, generator)
        network.to(device).start(torch.from_numpy(X).to(device))
        return network

    def _make_module(
        self, network: "FlowNetwork", X: NDArray[Any], head: LinearHead | None
    ) -> "FlowObjective":
        """Join the flow to the rows, and to the head."""
        from isoadapt.adapters._flow._network import FlowObjective

        X = X if X.flags.writeable else X.copy()
        device = network.mean.device
        return FlowObjective(network, torch.from_numpy(X).to(device), head).to(device)

    def _make_net(self, module: "FlowObjective", judge: Judge | None) -> AdapterNet:
        callbacks: list[tuple[str, Any]] = [("clip", GradientNormClipping(_MAX_NORM))]
        if judge is not None:
            callbacks.append(("judge", judge))
        return AdapterNet(
            module,
            JointLoss(
                self._bits_weight(),
                None if self.alpha is None else self.balance,
                self.smoothing,
            ),
            regression_loss if self._head_kind() == "regressor" else classification_loss,
            [Penalty(lambda bits: bits.mean(-1))],
            optimizer=torch.optim.Adam,
            optimizer__fused=True,
            lr=self.lr,
            batch_size=self.batch_size,
            callbacks=callbacks,
            callbacks__train_loss=None,
            callbacks__valid_loss=None,
            callbacks__print_log=None,
            device=module.X.device,
            verbose=0,
        )

    def _take_map(self, module: "FlowObjective", X: NDArray[Any]) -> "FlowMap":
        """Take the map from the trained network, the last ActNorm refined where no head reads."""
        parameters = list(module.network.parameters())
        if not all(bool(parameter.isfinite().all()) for parameter in parameters):
            raise self._diverged()
        map_ = module.network.map()
        if self.alpha is None and len(X) >= _CALIBRATED:
            map_ = map_.calibrated(X)
            if not np.isfinite([map_.last.log_scale, map_.last.shift]).all():
                raise self._diverged()
        return map_

    def _diverged(self) -> ValueError:
        return ValueError(
            f"training diverged with lr={self.lr}: the flow is no longer finite; choose a smaller "
            "lr, or coupling='additive'"
        )
