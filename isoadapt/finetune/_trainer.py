"""A Trainer whose loss also shapes the embeddings."""

import time
import warnings
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from isoadapt.encoders import is_classifier
from isoadapt.finetune._label_count import divides_by_count
from isoadapt.finetune._objective import Objective
from isoadapt.finetune._ranks import gathered, is_distributed
from isoadapt.finetune._shrinkage import sample_moments
from isoadapt.finetune._where import Points, Watch
from isoadapt.geometry import anisotropy, cumulative_explained_variance, isoscore_star, spectrum
from isoadapt.losses import IsoScoreLoss

STATE_FILE = "isoadapt_penalty.safetensors"


class IsotropyTrainer(Trainer):
    """A :class:`transformers.Trainer` with an isotropy penalty: task loss + lam · penalty.

    Everything else is the Trainer's own: arguments, data, evaluation (of the task's loss alone),
    gradient accumulation and checkpointing, mixed precision (penalties are computed in float32),
    ``torchrun`` (penalties are those of the batch gathered from all processes), checkpoints and
    resumption. At every logging step the log also gets

    - ``task_loss`` and ``penalty`` (with several: ``penalty_1``, ``penalty_2``, …), means since
      the last log, the penalty without its weight;
    - ``isoscore_star`` (with ζ and Σ_S of the first penalty if it is an IsoScoreLoss, else the
      plain IsoScore), ``anisotropy1``, ``anisotropy1_centered`` and ``ev1``, which equals the
      latter, of the last batch's points at the first place of `where`.

    ``logging_steps=1`` logs every step. :class:`isoadapt.report.AnisotropyProfile` draws the log.

    Parameters
    ----------
    *args : object
        As for the Trainer.
    penalty : Module, list of Module or None, default=None
        Losses of :mod:`isoadapt.losses`, or modules of your own that take points (n, d) and, if
        they wish, ``prior_cov`` or ``labels``, and return one number, a tensor of shape () with a
        gradient. They are copied. None trains plainly, and logs. Names as
        :func:`~isoadapt.finetune.finetune_text_classifier` takes them are not known here.
    lam : float or list of float, default=1.0
        Weights. For I-STAR's ``IsoScoreLoss(zeta, form="linear")`` below zero lowers
        isotropy, above zero raises it.
    balance : {"ema", "cumulative"} or None, default=None
        How task loss and penalty are brought to one size, see
        :class:`~isoadapt.losses.JointLoss`; several penalties count as one, their weighted sum.
    smoothing : float, default=0.15
        Of "ema".
    where : str, list of int, or a list of these, default="head_input"
        Which points are penalised; padding never is. "head_input": what enters the last linear
        layer, one vector a text for classifiers, a token for others. "last": the last layer's
        tokens. "all": the tokens of all layers, as one cloud. A list of layers: theirs, as one
        cloud, 1 being the first, 0 what enters it and -1 the last. "output_embeddings": the rows
        of that weight matrix. With several penalties also one place for each, such as
        ``["head_input", [1, 2]]``; ``[1, 2]`` alone is two layers, for all of them. I-STAR's own
        place is "all", that of CosReg "last".
    shrinkage_tokens : int, default=250_000
        Maximum number of vectors from which Σ_S, the ``prior_cov`` of an IsoScoreLoss with zeta
        above 0, is computed. It is computed at the start of each epoch from random training rows,
        without dropout; the log gets ``shrinkage_seconds`` and ``shrinkage_points``. Output
        embeddings are shrunk towards the identity.
    **kwargs : object
        As for the Trainer.

    Attributes
    ----------
    isotropy_objective : Module
        The copies of the penalties in ``isotropy_objective.penalties``, and the joint loss; made
        anew by each ``train``.

    Raises
    ------
    TypeError
        If a penalty is no module. In training, if it returns something other than a tensor.
    ValueError
        If a parameter is out of its range, or the model has no such place. In training, if a
        penalty returns a vector, or a number without a gradient.

    Notes
    -----
    A checkpoint holds what the penalties have learnt besides (moving means, Σ_S, the scale of
    spectrum control), so that a resumed run is the uninterrupted one; `lam` is as given now. (Of
    streams, and of batches grouped by length after the first epoch, the Trainer resumes with
    another order of the rows.)

    Persistent entropy is taken class by class where each text has one integer label, of all points
    together elsewhere; a batch needs five texts of a class for it to count.

    Each part of a step's gradient accumulation has its own penalty, and these are averaged: eight
    texts twice are not sixteen. For another task loss pass ``compute_loss_func``; a subclass that
    overrides ``compute_loss`` must call ``super()``'s, or nothing is penalised. To search over
    `lam`, make one trainer for each.

    With gradient accumulation or several processes the task's loss equals the plain Trainer's for
    a model that divides its loss by the number of labels of the whole step
    (``num_items_in_batch``), as most causal language models do. Many models accept that number and
    ignore it, such as the classifiers and the masked language model of BERT, and XLNet. For them
    the task's loss is the mean of the parts' means, whereas the plain Trainer of transformers 5
    takes their sum, so that gradients grow with the number of parts (issue 37766 of its
    repository). The first batch is evaluated two more times, without gradient, to tell
    the two kinds of model apart; a batch whose loss is zero or not finite leaves the question
    to the next.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization"; Kudrjashov, Karpik and Klyshinsky,
    "Shrink the Longest: Improving Latent Space Isotropy with Simplicial Geometry".

    Examples
    --------
    >>> from isoadapt.finetune import IsotropyTrainer
    >>> from isoadapt.losses import IsoScoreLoss
    >>> trainer = IsotropyTrainer(
    ...     model=model,
    ...     args=args,
    ...     train_dataset=dataset,
    ...     processing_class=tokenizer,
    ...     penalty=IsoScoreLoss(zeta=0.2, form="linear"),
    ...     lam=-1.0,
    ...     where="all",
    ... )  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    """

    isotropy_objective: Objective
    model_accepts_loss_kwargs: bool
    _make_objective: Any
    _sums: Tensor | None
    _n_summed: int
    _has_prior_covs: bool
    _knows_scale: bool

    def __init__(
        self,
        *args: Any,
        penalty: Any = None,
        lam: Any = 1.0,
        balance: str | None = None,
        smoothing: float = 0.15,
        where: Any = "head_input",
        shrinkage_tokens: int = 250_000,
        **kwargs: Any,
    ) -> None:
        if not isinstance(shrinkage_tokens, Integral) or shrinkage_tokens < 2:
            raise ValueError(f"shrinkage_tokens={shrinkage_tokens!r} must be 2 or more")
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"{self.args.n_gpu} GPUs in one process would each see a part of the batch: start "
                "one process a GPU by torchrun, or show this one a single GPU "
                "(CUDA_VISIBLE_DEVICES=0)"
            )
        self.shrinkage_tokens = int(shrinkage_tokens)
        self._knows_scale = False
        self._make_objective = partial(Objective, penalty, lam, balance, smoothing, where)
        self._start_anew()
        self.add_callback(_EpochStart(self))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from the start or from a checkpoint.

        Parameters
        ----------
        resume_from_checkpoint : str or bool, default=None
            As for the Trainer.
        *args : object
            As for the Trainer.
        **kwargs : object
            As for the Trainer.

        Returns
        -------
        TrainOutput
            As from the Trainer.
        """
        self._start_anew()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the joint loss in training, the task's in evaluation.

        Parameters
        ----------
        model : Module
            The model, wrapped or not.
        inputs : dict
            A batch.
        return_outputs : bool, default=False
            Whether to return the model's outputs too.
        num_items_in_batch : int or Tensor, default=None
            As for the Trainer.

        Returns
        -------
        Tensor of shape () or tuple
            The loss, and the outputs if asked for.
        """
        self._learn_scale(model, inputs, num_items_in_batch)
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._last_points = torch.zeros(0, 0)  # lest two clouds are kept at a time
        with self._watch() as watch:
            called = {**inputs, **watch.options}
            task, outputs = super().compute_loss(model, called, True, num_items_in_batch)
        clouds, labels = [], []
        for place in self.isotropy_objective.places:
            points = watch.points(place, outputs, inputs)
            clouds.append(points.values if points.rows is None else gathered(points.values))
            labels.append(self._classes(points, inputs.get("labels")))
        first = clouds[0].detach()
        is_weight = isinstance(clouds[0], nn.Parameter)  # which the step is going to change
        self._last_points = first.clone() if is_weight else first
        loss = self._join(task, clouds, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def figures(self, points: Tensor) -> dict[str, float]:
        """Measure the points of a batch for the log; override it to log others.

        Parameters
        ----------
        points : Tensor of shape (n, d)
            The points at the first place, without gradient.

        Returns
        -------
        dict of str to float
            Names and figures; without those that are not defined, as of equal points or of fewer
            than two, or where one is not finite.
        """
        if min(points.shape) < 2 or not bool(points.isfinite().all()):
            return {}
        points = points.float()
        found = {"isoscore_star": self._isoscore_star(points).clamp(0, 1)}
        scaled = points / points.abs().max()  # squares of large numbers overflow
        found["anisotropy1"] = anisotropy(spectrum(scaled, center=False), 1)
        centred = spectrum(scaled)
        found["anisotropy1_centered"] = anisotropy(centred, 1)
        found["ev1"] = cumulative_explained_variance(centred, 1)
        return {name: float(value) for name, value in found.items() if value.isfinite()}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the figures of the embeddings if it is a training step's log.

        Parameters
        ----------
        logs : dict of str to float
            What the Trainer has to say.
        start_time : float, default=None
            When training began.
        """
        if "loss" in logs and self._sums is not None:
            means = self.accelerator.reduce(self._sums / self._n_summed, reduction="mean").tolist()
            self._sums, self._n_summed = None, 0
            names = ["penalty"]
            if len(means) > 2:
                names = [f"penalty_{i}" for i in range(1, len(means))]
            logs |= dict(zip(["task_loss", *names], means, strict=False))
            self._warn_of_nothing(means[1:])
            logs |= self.figures(self._last_points)
            self._last_points = torch.zeros(0, 0)
        super().log(logs, start_time)

    def _start_anew(self) -> None:
        """Forget what earlier training has left in the penalties."""
        objective = self._make_objective(self.accelerator.unwrap_model(self.model))
        self.isotropy_objective = objective.to(self.args.device)
        self._sums = None
        self._n_summed = 0
        self._last_points = torch.zeros(0, 0)
        self._has_prior_covs = False  # those of the epoch within which the run was resumed

    def _watch(self) -> Watch:
        return Watch(self.accelerator.unwrap_model(self.model), self.isotropy_objective.places)

    def _warn_of_nothing(self, penalties: Sequence[float]) -> None:
        for value, loss in zip(penalties, self.isotropy_objective.penalties, strict=True):
            if value == 0 and int(getattr(loss, "n_degenerate", 0)):
                warnings.warn(
                    f"{loss} was 0 in every batch since the last log: too few points (a class "
                    "needs 5 for persistent entropy), or all equal; use larger batches, or another "
                    "where=",
                    stacklevel=2,
                )

    def _classes(self, points: Points, labels: Tensor | None) -> Tensor | None:
        """Class of each point, where each text has one."""
        model = self.accelerator.unwrap_model(self.model)
        if points.rows is None or labels is None or not is_classifier(model):
            return None
        if labels.ndim != 1 or labels.is_floating_point():
            return None
        return gathered(labels[points.rows])

    def _join(
        self,
        task: Tensor,
        clouds: Sequence[Tensor],
        labels: Sequence[Tensor | None],
        n_items: Any,
    ) -> Tensor:
        """Join the losses at the size that the Trainer expects of this part of the batch."""
        parts = self.current_gradient_accumulation_steps if self._is_scaled(n_items) else 1
        task = task * parts
        if is_distributed():  # all processes are to balance alike
            shown = self.accelerator.reduce(task.detach().clone(), reduction="mean")
            task = task + (shown - task.detach())
        objective = self.isotropy_objective
        if not objective.penalties:
            self._count([task])
            return task / parts
        penalties = objective.values(clouds, labels)
        self._count([task, *penalties])
        return objective(task, penalties) / parts

    def _learn_scale(self, model: Any, inputs: Any, n_items: Any) -> None:
        """Tell the Trainer of a model that accepts the number of labels but does not use it."""
        accepts = self.model_accepts_loss_kwargs and self.compute_loss_func is None
        if self._knows_scale or n_items is None or not accepts:
            return

        def loss(count: Any) -> Tensor:
            own = super(IsotropyTrainer, self).compute_loss(model, {**inputs}, False, count)
            return self.accelerator.reduce(own, reduction="mean")

        divides = divides_by_count(loss, model, n_items)
        if divides is not None:
            self._knows_scale, self.model_accepts_loss_kwargs = True, divides

    def _is_scaled(self, n_items: Any) -> bool:
        """Whether the task's loss is already divided by what the whole batch holds."""
        told = getattr(self, "loss_is_scaled_for_ga", None)
        if told is not None:
            return told
        by_model = self.model_accepts_loss_kwargs and n_items is not None
        return by_model or self.compute_loss_func is not None

    def _count(self, losses: Sequence[Tensor]) -> None:
        values = torch.stack([loss.detach().float() for loss in losses])
        self._sums = values if self._sums is None else self._sums + values
        self._n_summed += 1

    def _isoscore_star(self, points: Tensor) -> Tensor:
        objective = self.isotropy_objective
        first = next(iter(objective.penalties), None)
        if not isinstance(first, IsoScoreLoss) or len(points) < 4:
            return isoscore_star(points)
        return isoscore_star(points, objective.prior_covs[0], first.zeta, first.bias_corrected)

    def _renew_prior_covs(self) -> None:
        """Compute Σ_S for the epoch that begins, unless the run was resumed within it."""
        epoch = self.state.epoch or 0
        has_it = self._has_prior_covs and not float(epoch).is_integer()
        self._has_prior_covs = False
        objective, seed = self.isotropy_objective, self.args.seed + int(epoch)
        needed = objective.needs_prior_cov()
        if not needed or has_it:
            return
        started = time.perf_counter()
        found = sample_moments(self, [objective.places[i] for i in needed], seed)
        for i, moments in zip(needed, found, strict=True):
            if moments.count < 2:
                raise ValueError(
                    f"the training rows give {moments.count:.0f} point(s) at where="
                    f"{objective.places[i]!r}; Σ_S needs 2: use more rows, or a penalty with zeta=0"
                )
            objective.prior_covs[i] = moments.covariance().float().to(self.args.device)
        seconds = time.perf_counter() - started
        points = max(moments.count for moments in found)
        self.log({"shrinkage_seconds": seconds, "shrinkage_points": points})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:
            name = f"checkpoint-{self.state.global_step}"
            folder = Path(self._get_output_dir(trial=trial)) / name
            folder.mkdir(parents=True, exist_ok=True)
            self.isotropy_objective.save(folder / STATE_FILE)
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        path = Path(resume_from_checkpoint, STATE_FILE)
        if path.exists():
            self._has_prior_covs = self.isotropy_objective.load(path)
            return
        warnings.warn(
            f"{resume_from_checkpoint} holds no {STATE_FILE}, for another Trainer wrote it: "
            "moving means and the scale of a penalty start anew",
            stacklevel=2,
        )


class _EpochStart(TrainerCallback):
    def __init__(self, trainer: IsotropyTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._renew_prior_covs()
