"""A Trainer whose loss also shapes the embeddings."""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from transformers import Trainer, TrainerCallback

from isoadapt._files import atomic_path
from isoadapt.finetune._objective import Objective
from isoadapt.finetune._ranks import gathered, is_distributed
from isoadapt.finetune._where import Points, Watch
from isoadapt.geometry import Moments
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.geometry._spectrum import anisotropy, cumulative_explained_variance, spectrum
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
        they wish, ``cov`` or ``labels``. They are copied. None trains plainly, and logs.
    lam : float or list of float, default=1.0
        Weights. For I-STAR's ``IsoScoreLoss(zeta, reduction="linear")`` below zero lowers
        isotropy, above zero raises it.
    balance : {"ema", "cumulative"} or None, default=None
        How task loss and penalty are brought to one size, see
        :class:`~isoadapt.losses.JointLoss`; several penalties count as one, their weighted sum.
    smoothing : float, default=0.15
        Of "ema".
    where : str, list of int, or a list of these, default="head_input"
        Which points are penalised; padding never is. "head_input": what enters the last linear
        layer, one vector a text for classifiers, a token for others. "last": the last layer's
        tokens. "all": the tokens of all layers, as one cloud. A list of layers: theirs, 1 being
        the first. "output_embeddings": the rows of that weight matrix. With several penalties
        also one place for each.
    shrinkage_tokens : int, default=250_000
        Vectors, at most, behind the shrinkage matrix Σ_S of an IsoScoreLoss with zeta above 0. It
        is computed at the start of each epoch from random training rows, without dropout;
        the log gets ``shrinkage_seconds`` and ``shrinkage_points``. Output embeddings are
        shrunk towards the identity.
    **kwargs : object
        As for the Trainer.

    Attributes
    ----------
    objective : Module
        The copies of the penalties in ``objective.penalties``, and the joint loss.

    Raises
    ------
    TypeError
        If a penalty is no module.
    ValueError
        If a parameter is out of its range, or the model has no such place.

    Notes
    -----
    A checkpoint holds what the penalties have learnt besides (moving means, Σ_S, the scale of
    spectrum control), so that a resumed run is the uninterrupted one. Persistent entropy is taken
    class by class where each text has one integer label, of all points together elsewhere.

    With gradient accumulation or several processes the task's loss is the mean of the parts' means
    (of a causal language model, the mean over all tokens). The plain Trainer of transformers 5
    takes the sum for BERT and others, whose gradients grow with the number of parts.

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
    ...     penalty=IsoScoreLoss(zeta=0.2, reduction="linear"),
    ...     lam=-1.0,
    ...     where="all",
    ... )  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    """

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
        if shrinkage_tokens < 2:
            raise ValueError(f"shrinkage_tokens={shrinkage_tokens!r} must be 2 or more")
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"{self.args.n_gpu} GPUs in one process would each see a part of the batch: start "
                "one process a GPU by torchrun, or show this one a single GPU "
                "(CUDA_VISIBLE_DEVICES=0)"
            )
        # Other models take the keyword that says how many labels the whole step has, and ignore it.
        if getattr(self.accelerator.unwrap_model(self.model), "loss_type", None) != "ForCausalLM":
            self.model_accepts_loss_kwargs = False
        self.shrinkage_tokens = shrinkage_tokens
        objective = Objective(penalty, lam, balance, smoothing, where, self.model)
        self.objective = objective.to(self.args.device)
        self._sums: Tensor | None = None
        self._n_summed = 0
        self._last_points = torch.zeros(0, 0)
        self.add_callback(_EpochStart(self))

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
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with self._watch() as watch:
            called = {**inputs, **watch.options}
            task, outputs = super().compute_loss(model, called, True, num_items_in_batch)
        clouds, labels = [], []
        for place in self.objective.places:
            points = watch.points(place, outputs, inputs)
            clouds.append(points.values if points.rows is None else gathered(points.values))
            labels.append(self._classes(points, inputs.get("labels")))
        self._last_points = clouds[0].detach()
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
            Names and figures; empty for fewer than two points, or where one is not finite.
        """
        if min(points.shape) < 2 or not bool(points.isfinite().all()):
            return {}
        points = points.float()
        raw, centred = spectrum(points, center=False), spectrum(points)
        return {
            "isoscore_star": float(self._isoscore_star(points).clamp(0, 1)),
            "anisotropy1": float(anisotropy(raw, 1)),
            "anisotropy1_centered": float(anisotropy(centred, 1)),
            "ev1": float(cumulative_explained_variance(centred, 1)),
        }

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
            logs |= self.figures(self._last_points)
        super().log(logs, start_time)

    def _watch(self) -> Watch:
        return Watch(self.accelerator.unwrap_model(self.model), self.objective.places)

    def _classes(self, points: Points, labels: Tensor | None) -> Tensor | None:
        """Class of each point, where each text has one."""
        if points.rows is None or labels is None or labels.ndim != 1 or labels.is_floating_point():
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
        if not self.objective.penalties:
            self._count([task])
            return task / parts
        penalties = self.objective.values(clouds[: len(self.objective.penalties)], labels)
        self._count([task, *penalties])
        return self.objective(task, penalties) / parts

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
        first = next(iter(self.objective.penalties), None)
        if not isinstance(first, IsoScoreLoss) or len(points) < 4:
            return isoscore_star(points)
        return isoscore_star(points, self.objective.priors[0], first.zeta, first.bias_corrected)

    def _renew_priors(self) -> None:
        """Compute Σ_S for the epoch that begins, unless the run was resumed within it."""
        epoch = int(self.state.epoch or 0)
        needed = self.objective.needs_prior()
        if not needed or self.objective.prior_epoch == epoch:
            return
        started = time.perf_counter()
        found = self._moments([self.objective.places[i] for i in needed], self.args.seed + epoch)
        for i, moments in zip(needed, found, strict=True):
            if moments.count < 2:
                raise ValueError(
                    f"the training rows give {moments.count:.0f} point(s) at where="
                    f"{self.objective.places[i]!r}; Σ_S needs 2: use more rows, or a penalty with "
                    "zeta=0"
                )
            self.objective.priors[i] = moments.covariance().float().to(self.args.device)
        self.objective.prior_epoch = epoch
        seconds = time.perf_counter() - started
        points = max(moments.count for moments in found)
        self.log({"shrinkage_seconds": seconds, "shrinkage_points": points})

    @torch.no_grad()
    def _moments(self, places: Sequence[Any], seed: int) -> list[Moments]:
        """Moments of the points of random training rows, in evaluation mode, over all ranks."""
        model = self.accelerator.unwrap_model(self.model)
        limit = -(-self.shrinkage_tokens // self.args.world_size)
        found = [Moments() for _ in places]
        device = self.args.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            model.eval()
            for batch in self._random_batches(seed):
                inputs = self._prepare_inputs(batch)
                with self.compute_loss_context_manager(), Watch(model, places) as watch:
                    outputs = model(**inputs, **watch.options)
                for moments, place in zip(found, places, strict=True):
                    rows = watch.points(place, outputs, inputs).values
                    moments.update(rows[: limit - int(moments.count)])
                if all(moments.count >= limit for moments in found):
                    break
            model.train()
        return _merged(found)

    def _random_batches(self, seed: int) -> Iterator[Any]:
        """This process' share of the training rows in random order, or a stream's in its own."""
        dataset, rank, ranks = self.train_dataset, self.args.process_index, self.args.world_size
        generator = torch.Generator().manual_seed(seed)
        if sized := hasattr(dataset, "__len__"):
            order = torch.randperm(len(dataset), generator=generator).tolist()
            dataset = Subset(dataset, order[rank::ranks])
        loader = DataLoader(
            dataset,
            batch_size=self.args.eval_batch_size,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, "shrinkage"),
            generator=generator,
        )
        return iter(loader) if sized else islice(loader, rank, None, ranks)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:
            name = f"checkpoint-{self.state.global_step}"
            folder = Path(self._get_output_dir(trial=trial)) / name
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(folder / STATE_FILE) as path:
                save_file(self.objective.state(), path)
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        path = os.path.join(resume_from_checkpoint, STATE_FILE)
        if not os.path.exists(path):
            warnings.warn(
                f"{resume_from_checkpoint} holds no {STATE_FILE}, for another Trainer wrote it: "
                "moving means and the scale of a penalty start anew",
                stacklevel=2,
            )
            return
        try:
            self.objective.restore(load_file(path))
        except RuntimeError as error:
            raise ValueError(
                f"{path} belongs to other penalties; resume with penalty= and balance= as they were"
            ) from error


class _EpochStart(TrainerCallback):
    def __init__(self, trainer: IsotropyTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._renew_priors()


def _merged(found: list[Moments]) -> list[Moments]:
    """Moments of all processes together."""
    if not is_distributed():
        return found
    from accelerate.utils import gather_object

    total = [Moments() for _ in found]
    for part in gather_object([found]):
        for moments, more in zip(total, part, strict=True):
            moments.merge(more)
    return total
