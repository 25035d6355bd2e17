"""A normalising flow from embeddings to the standard normal distribution."""

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt._utils.state import own_state
from isoadapt.adapters._base import BaseAdapter, fit_method, make_random_state
from isoadapt.adapters._engine._choice import EpochChoice, TargetUnits, make_score
from isoadapt.adapters._engine._loop import AdapterNet
from isoadapt.adapters._engine._task import Penalty
from isoadapt.adapters._engine._train import Training, epochs_bar
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._rows import Batch, Batches, Sample, check_spread, split_rows, to_tensor
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss

if TYPE_CHECKING:
    from isoadapt.adapters._flow._map import FlowMap
    from isoadapt.adapters._flow._network import FlowNetwork

_START_ROWS = 2048  # largest number of rows that initialise the ActNorms
_MIN_CALIBRATION_ROWS = 32  # fewer rows do not determine the variances of the outputs
_AS_OTHERS = ["head", "balance", "smoothing", "batch_size", "max_epochs", "validation_fraction"]
_AS_OTHERS += ["patience", "scoring", "device", "random_state", "verbose"]


@dataclass(eq=False, repr=False, kw_only=True)
class FlowAdapter(BaseAdapter):
    """Normalising flow: an invertible network that makes embeddings standard normal.

    The flow f maximises the likelihood of embeddings h under z = f(h) ~ N(0, I). It is a chain of
    blocks, each consisting of ActNorm, permutation and coupling, followed by a last ActNorm. A
    coupling shifts one half of the coordinates, and also scales it if affine, by the outputs of a
    small network whose inputs are the other half. The initial flow is the standardisation of the
    features.

    Without `alpha` the flow is trained without labels. With at least 32 rows, the last ActNorm is
    then set to its maximum-likelihood value, so that the outputs of the rows given to `fit` have
    mean 0 and variance 1. If `head` is given, a head is fitted to the outputs.

    With `alpha` the loss is ``alpha * task + (1 - alpha) * bits``, with the task loss of a frozen
    head on the outputs, which is converted so that the initial flow preserves its predictions.

    The outputs do not depend on the scale of the embeddings. Features without variance are only
    centred and divided by the root mean square of the standard deviations.

    The flow needs zuko: ``pip install "isoadapt[flow]"``.

    Parameters
    ----------
    head : LinearHead, linear estimator, {"auto", "logistic", "ridge"} or None, default="auto"
        The head that predicts from the outputs, see :doc:`/guide/heads`. "auto" is the
        checkpoint's head in an AdaptedEncoder, elsewhere None: a transformer only. Without `alpha`,
        the head, or one of its kind if it is frozen, is fitted to the outputs.
    n_blocks : int, default=8
        Number of blocks.
    hidden : int, default=128
        Width of the hidden layer in each coupling.
    coupling : {"additive", "affine"}, default="affine"
        "additive" shifts and keeps volumes; "affine" also scales, by factors from 0.61 to 1.65.
    alpha : float, default=None
        Weight of the task in the loss, in (0, 1]; requires a head. None: train without labels.
    balance : {"ema", "cumulative"} or None, default="ema"
        How the two losses are balanced with `alpha`; see :class:`~isoadapt.losses.JointLoss`.
    <smoothing>
    lr : float, default=1e-3
        Learning rate of Adam.
    <batch_size>
    <max_epochs>
    validation_fraction : float or None, default=0.3
        Fraction of the rows, in [0, 1), that only choose the epoch, stratified for classifiers with
        `alpha`. Without `alpha`, the last ActNorm and the head are computed from all rows. With 0
        or None, or if a side of the split would have fewer than 4 rows, the flow is trained on all
        rows and the last epoch is kept.
    <patience>
    scoring : str, callable or None, default=None
        Metric of the task with `alpha`, as in scikit-learn; None means accuracy or R².
    <device>
    random_state : int, RandomState instance or None, default=None
        Controls the split, the permutations, the initial weights, shuffling and the bootstrap.
    <verbose>

    Attributes
    ----------
    map_ : FlowMap
        The fitted flow, with float64 arrays.
    history_ : list of dict
        One entry for each epoch, with "epoch", "train_loss" and "dur" (seconds). With a validation
        split there are also "valid_cost", the bits/dim of the standardised validation rows
        (multiplied by ``(1 - alpha) / alpha`` with `alpha`), and "valid_score", the metric of the
        task with `alpha` and minus the cost without.
    n_iter_ : int
        Number of epochs run.
    best_epoch_ : int
        Number of the kept epoch, from 1: with the fewest bits/dim or, with `alpha`, the last whose
        score is within one standard error of the best score.
    <common>

    Notes
    -----
    The flow is trained in float32 and evaluated in float64; `inverse_transform` returns
    embeddings up to rounding. Bits/dim of rows X are
    ``-adapter.score_samples(X) / (X.shape[1] * np.log(2))``. As for :class:`IsotropyLayer`, small
    training steps run in one thread on a CPU.

    References
    ----------
    "On the sentence embeddings from pre-trained language models" trains such a flow from
    sentence embeddings to a normal distribution. ActNorm is from "Glow: generative flow with
    invertible 1×1 convolutions", the additive coupling from "NICE: non-linear independent
    components estimation".

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
        **{name: PenalisedAdapter._parameter_constraints[name] for name in _AS_OTHERS},
        "n_blocks": [Interval(Integral, 1, None, closed="left")],
        "hidden": [Interval(Integral, 1, None, closed="left")],
        "coupling": [StrOptions({"additive", "affine"})],
        "alpha": [Interval(Real, 0, 1, closed="right"), None],
        "lr": [Interval(Real, 0, None, closed="neither")],
    }

    _affine: ClassVar[bool] = False

    head: Any = field(default="auto", kw_only=False)
    n_blocks: int = 8
    hidden: int = 128
    coupling: str = "affine"
    alpha: float | None = None
    balance: str | None = "ema"
    smoothing: float = 0.15
    lr: float = 1e-3
    batch_size: int = 128
    max_epochs: int = 15
    validation_fraction: float | None = 0.3
    patience: int | None = 10
    scoring: Any = None
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    @fit_method
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Fit the flow, and the head if there is one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; ignored if ``head`` is None.

        Raises
        ------
        ValueError
            If X is constant or not finite, if `alpha` is given without a head, if y has labels
            that the head does not know, or if training diverges.
        ImportError
            If zuko is not installed.
        """
        if self.alpha is not None and self._head is None:
            raise ValueError(
                f"alpha={self.alpha!r} needs a head, whose task loss is added to the bits, but "
                f"head={self.head!r}: pass a head, or alpha=None to train without labels"
            )
        rows = self._read_rows(X, y)
        refit = self._refits_head()
        if refit and not needs_fit(self._head):
            self._resolve_head(rows)  # raises before training if its width is wrong
        network, head, choice = self._train(rows.X, None if self.alpha is None else rows.y)
        map_ = network.map()
        if self.alpha is None and len(rows.X) >= _MIN_CALIBRATION_ROWS:
            map_ = map_.calibrated(rows.X)
        if not all(np.isfinite(part).all() for step in (*map_.blocks, map_.last) for part in step):
            raise ValueError(
                f"training diverged with lr={self.lr}: the weights of the flow are no longer "
                "finite; choose a smaller lr, or coupling='additive'"
            )
        if refit:
            head = self._fit_head(rows, map_)
        self.history_, self.n_iter_ = choice.history, len(choice.history)
        return self._set_fitted(map_, head, best_epoch_=choice.best_epoch)

    @own_state()
    def score_samples(self, X: ArrayLike) -> Floats:
        """Compute the log-likelihood (n_samples,) of each row under the flow, in nats."""
        rows = self._check_rows(X)
        return map_rows(cast("FlowMap", self.map_).log_likelihood, rows)

    def _refits_head(self) -> bool:
        return self._head is not None and self.alpha is None

    def _train(
        self, X: NDArray[Any], y: NDArray[Any] | None
    ) -> tuple["FlowNetwork", LinearHead | None, EpochChoice]:
        """Train the flow, with the head's task if there are labels; return all three."""
        from isoadapt.adapters._flow._network import FlowNetwork

        rng, device = make_random_state(self.random_state), resolve_device(self.device)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31)))
        labels = y if self._head_kind() == "classifier" else None
        fitting, validating = split_rows(len(X), labels, self.validation_fraction, rng)
        check_spread(Moments().update(X[fitting]))
        network = FlowNetwork(X.shape[1], self.n_blocks, self.hidden, self.coupling, generator)
        network.start(X[rng.permutation(fitting)[:_START_ROWS]])
        head = targets = score = None
        if y is not None:
            own = cast(LinearHead, self._resolve_head(Sample(X[fitting], y[fitting])))
            head, values = network.normalised_head(own), own._targets(y)
            units = TargetUnits.of(values[fitting])
            network.read_by(units.head(head))
            targets = to_tensor(cast(NDArray, units.targets(values)), device)
            if validating is not None:
                held = y[validating], values[validating]
                score = make_score(head, *held, units, None, self.scoring)
        rows = Batch(to_tensor(map_rows(network.normalise, X, np.float32), device), targets)
        batches = Batches(rows, torch.from_numpy(fitting).to(device), self.batch_size, [generator])
        held_out = None if validating is None else torch.from_numpy(validating).to(device)
        weight = 1.0 if self.alpha is None else (1 - self.alpha) / self.alpha
        net = self._make_net(network, weight, device)
        choice = EpochChoice(self.max_epochs, self.patience, score, weight, rng)
        training = Training(net, batches, held_out, [choice], counts_start=False)
        with epochs_bar(self.max_epochs, self.verbose) as bar:
            training.run(bar.update)
        network.load_state_dict(choice.state)
        return network, head, choice

    def _make_net(self, network: "FlowNetwork", weight: float, device: torch.device) -> AdapterNet:
        return AdapterNet(
            network,
            JointLoss(weight, None if self.alpha is None else self.balance, self.smoothing),
            [Penalty(lambda bits: bits.mean(-1))],
            optimizer=torch.optim.Adam,
            optimizer__fused=True,
            lr=self.lr,
            device=device,
        )
