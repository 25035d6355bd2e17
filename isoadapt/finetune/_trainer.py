"""A Trainer of transformers whose loss includes an isotropy penalty."""

import time
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import warn
from isoadapt.encoders._backbone import is_classifier
from isoadapt.finetune._anchor import Anchor
from isoadapt.finetune._gathering import gathered, is_distributed, sample_moments, text_vectors
from isoadapt.finetune._objective import Objective, Points, Watch, divides_by_count
from isoadapt.finetune._penalties import with_defaults
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.geometry._spread import anisotropy, cumulative_explained_variance, spectrum
from isoadapt.losses import IsoScoreLoss

import_optional("accelerate", feature="IsotropyTrainer", extra="finetune")

STATE_FILE = "isoadapt_penalty.safetensors"


class IsotropyTrainer(Trainer):
    """A :class:`transformers.Trainer` with an isotropy penalty: task loss + lam · penalty.

    Arguments, data, gradient accumulation, gradient checkpointing, checkpoints and resumption work
    as in the Trainer. Evaluation reports the task loss without the penalty. With mixed precision,
    the penalty is computed in float32. Under ``torchrun``, it is computed on the batches of all
    processes together. Each training log has these additional entries:

    - ``task_loss`` and ``penalty``, means since the previous log. The penalty is not multiplied by
      its weight.
    - ``isoscore_star``, ``anisotropy1``, ``anisotropy1_centered`` and ``ev1`` of the points of the
      last batch. ``isoscore_star`` uses ζ and Σ_S of the penalty if that is an IsoScoreLoss, and is
      the plain IsoScore otherwise. ``ev1`` equals ``anisotropy1_centered``.

    ``logging_steps=1`` logs every step. :class:`isoadapt.report.AnisotropyProfile` plots the log.

    Parameters
    ----------
    *args : object
        Positional arguments of the Trainer.
    penalty : str, Module or None, default=None
        A name as in :func:`~isoadapt.finetune.finetune_text_classifier`, a loss of
        :mod:`isoadapt.losses`, or another module. It is called with points (n, d), and with
        ``prior_cov`` and ``labels`` if its ``forward`` has these parameters. It must return a
        tensor of shape () with a gradient. The module is copied. None trains without a penalty and
        logs the figures.
    lam : float, default=None
        Weight of the penalty. With ``IsoScoreLoss(zeta, form="linear")`` of I-STAR, a negative
        weight lowers isotropy and a positive weight raises it. None: 1, for "anchor" 0.1.
    balance : {"ema", "cumulative"} or None, default=None
        How task loss and penalty are scaled to the same size, see
        :class:`~isoadapt.losses.JointLoss`.
    smoothing : float, default=0.15
        Smoothing factor of the balance "ema".
    where : str, int or list of int, default=None
        Which points are penalised; padding is always left out. "head_input": the input of the last
        linear layer, with one vector per text for classifiers and one per token for other models.
        "mean": the mean of the tokens of the last layer, one vector per text. "last": the tokens of
        the last layer. "all": the tokens of all layers, as one set of points. A list of integers:
        the tokens of these hidden states, as one set of points, where 0 is the input of the first
        layer, 1 its output and -1 the output of the last layer. "output_embeddings": the rows of
        the output embedding matrix. None: "head_input", or the place of a penalty given by name.
        The layers of a model with LoRA are those of the model inside.
    shrinkage_tokens : int, default=250_000
        Maximum number of vectors from which Σ_S, the ``prior_cov`` of an IsoScoreLoss with zeta
        above 0, is computed. It is computed at the start of each epoch from random training rows,
        without dropout, and logged as ``shrinkage_seconds`` and ``shrinkage_points``. Output
        embeddings are shrunk towards the identity instead.
    **kwargs : object
        Keyword arguments of the Trainer.

    Attributes
    ----------
    isotropy_objective : Module
        The joint loss, with the copy of the penalty in ``isotropy_objective.penalty``. Each call of
        ``train`` creates a new one.

    Raises
    ------
    TypeError
        If the penalty is not a name or module. During training, if it does not return a tensor.
    ValueError
        If a parameter is out of its range, or if the model does not have the vectors in `where`.
        During training, if the penalty returns more than one number, or one without a gradient.

    Notes
    -----
    Checkpoints include the state of the penalty (moving means, Σ_S, the scale of spectrum
    control), so a resumed run gives the same result as an uninterrupted one. `lam` is not
    restored but taken from the new trainer. For streams, and after the first epoch for batches
    grouped by length, the Trainer itself resumes with another order of the rows.

    Persistent entropy is computed per class if each text has one integer label, otherwise over all
    points. A class counts only in batches with at least five of its texts.

    With gradient accumulation, the penalty is computed on each part of a step separately and
    averaged. Two batches of eight texts are therefore not equivalent to one batch of sixteen. To
    use another task loss, pass ``compute_loss_func``. A subclass that overrides ``compute_loss``
    must call ``super().compute_loss``, otherwise no penalty is added, and the first step gives a
    warning. To search over `lam`, create one trainer for each value. :doc:`/guide/finetuning` says
    where the task loss differs from that of the Trainer.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization"; Kudrjashov, Karpik and Klyshinsky,
    "Shrink the Longest: Improving Latent Space Isotropy with Simplicial Geometry".

    Examples
    --------
    >>> from isoadapt.finetune import IsotropyTrainer
    >>> data = {"train_dataset": dataset, "processing_class": tokenizer}  # doctest: +SKIP
    >>> trainer = IsotropyTrainer(model, args, **data, penalty="istar", lam=1.0)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    """

    isotropy_objective: Objective
    model_accepts_loss_kwargs: bool
    _make_objective: Any
    _losses: list[Tensor]  # task loss and penalty of each batch since the last log
    _has_prior_cov: bool  # whether Σ_S of the current epoch was loaded on resumption
    _loss_scaling_known: bool

    def __init__(
        self,
        *args: Any,
        penalty: Any = None,
        lam: float | None = None,
        balance: str | None = None,
        smoothing: float = 0.15,
        where: Any = None,
        shrinkage_tokens: int = 250_000,
        **kwargs: Any,
    ) -> None:
        if not isinstance(shrinkage_tokens, Integral) or shrinkage_tokens < 2:
            raise ValueError(f"shrinkage_tokens={shrinkage_tokens!r} must be 2 or more, an integer")
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"n_gpu={self.args.n_gpu}: with several GPUs in one process, each would compute "
                "the penalty on a part of the batch only; start one process per GPU with torchrun, "
                "or make a single GPU visible (CUDA_VISIBLE_DEVICES=0)"
            )
        self.shrinkage_tokens = int(shrinkage_tokens)
        self._loss_scaling_known = False
        penalty, lam, where = with_defaults(penalty, lam, where)
        self._make_objective = partial(Objective, penalty, lam, balance, smoothing, where)
        self._reset_objective()
        self.add_callback(_Watcher(self))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train from the start, or resume, with the arguments and result of ``Trainer.train``."""
        self._reset_objective()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the joint loss () in training, the task loss in evaluation, as a Trainer does.

        With `return_outputs`, the result is a pair of the loss and the model's outputs.
        """
        self._detect_loss_scaling(model, inputs, num_items_in_batch)
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._last_points = torch.zeros(0, 0)  # frees the memory of the last batch's points
        with self._watch() as watch:
            called = {**inputs, **watch.options}
            task, outputs = super().compute_loss(model, called, True, num_items_in_batch)
        points = watch.points(outputs, inputs)
        cloud = points.values if points.rows is None else gathered(points.values)
        is_weight = isinstance(cloud, nn.Parameter)  # the optimiser step will change it
        self._last_points = cloud.detach().clone() if is_weight else cloud.detach()
        known = {"labels": self._classes(points, inputs.get("labels"))}
        if self.isotropy_objective.takes("texts"):
            known["texts"] = gathered(watch.text_keys(inputs))
        loss = self._join(task, cloud, known, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def figures(self, points: Tensor) -> dict[str, float]:
        """Compute the figures by name of points (n, d) for the log; override it to log others.

        Figures that are undefined are left out, as for equal points or fewer than two. The result
        is empty if a point is not finite.
        """
        if min(points.shape) < 2 or not bool(points.isfinite().all()):
            return {}
        points, penalty = points.float(), self.isotropy_objective.penalty
        of_penalty: Any = ()
        if isinstance(penalty, IsoScoreLoss) and len(points) >= 4:
            of_penalty = self.isotropy_objective.prior_cov, penalty.zeta, penalty.bias_corrected
        found = {"isoscore_star": isoscore_star(points, *of_penalty).clamp(0, 1)}
        scaled = points / points.abs().max()  # squares of large numbers overflow
        found["anisotropy1"] = anisotropy(spectrum(scaled, center=False), 1)
        centred = spectrum(scaled)
        found["anisotropy1_centered"] = anisotropy(centred, 1)
        found["ev1"] = cumulative_explained_variance(centred, 1)
        return {name: float(value) for name, value in found.items() if value.isfinite()}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; the log of a training step also gets the losses and figures of the embeddings."""
        if "loss" in logs and self._losses:
            means = self.accelerator.reduce(torch.stack(self._losses).mean(0), reduction="mean")
            self._losses = []
            logs |= dict(zip(("task_loss", "penalty"), means.tolist(), strict=False))
            penalty = self.isotropy_objective.penalty
            if logs.get("penalty") == 0 and int(getattr(penalty, "n_degenerate", 0)):
                warn(
                    f"{penalty} was 0 in every batch since the last log, because there were too "
                    "few points (IsoScore needs 3, with zeta 2, with bias_corrected 4; persistent "
                    "entropy 5 per class) or all points were equal; use larger batches or another "
                    "where="
                )
            logs |= self.figures(self._last_points)
            self._last_points = torch.zeros(0, 0)
        super().log(logs, start_time)

    def _reset_objective(self) -> None:
        """Create a new objective, without the state of earlier training."""
        objective = self._make_objective(self._network())
        self.isotropy_objective = objective.to(self.args.device)
        self._losses = []
        self._last_points = torch.zeros(0, 0)
        self._has_prior_cov = False

    def _network(self) -> Any:
        """Return the model without wrappers; a PEFT adapter has its layers inside."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _watch(self) -> Watch:
        return Watch(self._network(), self.isotropy_objective.place)

    def _classes(self, points: Points, labels: Tensor | None) -> Tensor | None:
        """Return the class of each point, or None unless each text has one integer label."""
        if points.rows is None or labels is None or not is_classifier(self._network()):
            return None
        if labels.ndim != 1 or labels.is_floating_point():
            return None
        return gathered(labels[points.rows])

    def _join(self, task: Tensor, cloud: Tensor, known: dict[str, Any], n_items: Any) -> Tensor:
        """Compute the joint loss, scaled as the Trainer expects for this part of a step."""
        parts = self.current_gradient_accumulation_steps if self._is_scaled(n_items) else 1
        task = task * parts
        if is_distributed():  # all processes must balance with the same task loss
            shown = self.accelerator.reduce(task.detach().clone(), reduction="mean")
            task = task + (shown - task.detach())
        losses, joint = [task], task
        if self.isotropy_objective.penalty is not None:
            joint, penalty = self.isotropy_objective(task, cloud, **known)
            losses.append(penalty)
        self._losses.append(torch.stack([loss.detach().float() for loss in losses]))
        return joint / parts

    def _detect_loss_scaling(self, model: Any, inputs: Any, n_items: Any) -> None:
        """Set `model_accepts_loss_kwargs` to whether the model divides by the label count."""
        accepts = self.model_accepts_loss_kwargs and self.compute_loss_func is None
        if self._loss_scaling_known or n_items is None or not accepts:
            return

        def loss(count: Any) -> Tensor:
            own = super(IsotropyTrainer, self).compute_loss(model, {**inputs}, False, count)
            return self.accelerator.reduce(own, reduction="mean")

        divides = divides_by_count(loss, model, n_items)
        if divides is not None:
            self._loss_scaling_known, self.model_accepts_loss_kwargs = True, divides

    def _is_scaled(self, n_items: Any) -> bool:
        """Return whether the task loss is already divided by the label count of the whole step."""
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if is_scaled is not None:
            return is_scaled
        by_model = self.model_accepts_loss_kwargs and n_items is not None
        return by_model or self.compute_loss_func is not None

    def _update_prior_cov(self) -> None:
        """Compute Σ_S for the epoch that begins, unless the run was resumed within it."""
        epoch = self.state.epoch or 0
        was_loaded = self._has_prior_cov and not float(epoch).is_integer()
        self._has_prior_cov = False
        objective = self.isotropy_objective
        if was_loaded or not objective.needs_prior_cov():
            return
        started = time.perf_counter()
        moments = sample_moments(self, self.args.seed + int(epoch))
        objective.prior_cov = moments.covariance().float().to(self.args.device)
        seconds = time.perf_counter() - started
        self.log({"shrinkage_seconds": seconds, "shrinkage_points": moments.count})

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
            self._has_prior_cov = self.isotropy_objective.load(path)
            return
        warn(
            f"{resume_from_checkpoint} holds no {STATE_FILE}, so IsotropyTrainer did not write it: "
            "moving means and the scale of a penalty restart from their initial values, and an "
            "anchor holds to the model of the checkpoint"
        )


class _Watcher(TrainerCallback):
    """Gets what a penalty needs in time, and warns if the first step had no penalty."""

    def __init__(self, trainer: IsotropyTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        anchor = self.trainer.isotropy_objective.penalty
        if isinstance(anchor, Anchor) and not len(anchor.texts):  # else they were resumed
            anchor.texts, anchor.vectors = text_vectors(self.trainer)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._update_prior_cov()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, penalty = self.trainer, self.trainer.isotropy_objective.penalty
        if state.global_step == 1 and penalty is not None and not trainer._losses:
            warn(
                f"{type(trainer).__name__} trains without its penalty, {penalty}: its compute_loss "
                "does not call super().compute_loss. For another task loss, such as one with "
                "weights of the classes, pass compute_loss_func= instead of overriding it"
            )
