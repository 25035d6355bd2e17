"""IsoBN as a layer before the head of a classifier, for training with moving statistics."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isoadapt.adapters._isobn import isobn_scale
from isoadapt.encoders._backbone import find_last_linear, is_classifier
from isoadapt.encoders._folder import weight_files
from isoadapt.encoders._models import quiet
from isoadapt.finetune._gathering import gathered

_STATE = ("cov", "n_steps", "weight")  # saved as "isobn.<name>" next to the weight of the head


class IsoBNLayer(nn.Module):
    """Scale features as :class:`~isoadapt.IsoBN` does, with a moving average of the covariance.

    In training mode, the covariance of the batch (divided by n, computed in float32 or higher
    precision) first updates a bias-corrected exponential moving average, from which the scale is
    then computed. In evaluation mode the average is not updated. No gradient flows through the
    scale. The average stays in float32 when the module is cast to half precision. Before the
    first training step the layer is the identity. In distributed training, the covariance is
    that of the batches of all processes together.

    Parameters
    ----------
    n_features : int
        Number of features d.
    beta : float, default=0.5
        Strength of the scaling, in [0, 1]. With 0 the rows are unchanged.
    eps : float, default=1e-3
        The ε > 0 that is added to γ_i σ_i and to the total variance after scaling, as in
        :class:`~isoadapt.IsoBN`.
    momentum : float, default=0.05
        Weight of the new batch in the moving average, in (0, 1].

    Attributes
    ----------
    cov : Tensor of shape (n_features, n_features)
        The bias-corrected moving average: after k equal batches it equals their covariance.
    n_steps : Tensor of shape ()
        Number of batches in the average. A batch without variance (a single row, or equal rows)
        or with values that are not finite is ignored.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    References
    ----------
    W. Zhou, B. Y. Lin and X. Ren (2021), "IsoBN: Fine-tuning BERT with isotropic batch
    normalization".

    Examples
    --------
    >>> import torch
    >>> from isoadapt.finetune import IsoBNLayer
    >>> layer = IsoBNLayer(2, beta=1.0, eps=1e-8)
    >>> X = torch.tensor([[3.0, 0.1], [-3.0, 0.1], [3.0, -0.1], [-3.0, -0.1]])
    >>> layer(X).std(0, correction=0)
    tensor([2.1225, 2.1225])
    """

    cov: Tensor
    n_steps: Tensor

    def __init__(
        self, n_features: int, beta: float = 0.5, eps: float = 1e-3, momentum: float = 0.05
    ) -> None:
        super().__init__()
        if not 0 <= beta <= 1:
            raise ValueError(f"beta={beta!r} must lie in [0, 1]")
        if not 0 < eps < float("inf"):
            raise ValueError(f"eps={eps!r} must be more than 0 and finite")
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum={momentum!r} must lie in (0, 1]")
        self.n_features, self.beta, self.eps, self.momentum = n_features, beta, eps, momentum
        self.register_buffer("cov", torch.zeros(n_features, n_features))
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Scale rows (..., n_features) in their dtype; in training, update the average first."""
        if self.training:
            self._track(x.detach().reshape(-1, self.n_features))
        return (x * self.scale()).to(x.dtype)

    def scale(self) -> Tensor:
        """Compute the scale (n_features,) from the moving average, at first 1."""
        return torch.where(self.n_steps > 0, isobn_scale(self.cov, self.beta, self.eps), 1.0)

    def __repr__(self) -> str:
        shown = f"{self.n_features}, beta={self.beta}, eps={self.eps}, momentum={self.momentum}"
        return f"{type(self).__name__}({shown})"

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move or cast the layer, but keep the average in float32 or higher precision."""
        cov = self.cov
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.cov.dtype, torch.float32)
        if self.cov.dtype != dtype:
            self.cov = cov.to(self.cov.device, dtype)
        return self

    @torch.no_grad()
    def _track(self, rows: Tensor) -> None:
        """Update the average with rows (n, d), unless their variance is zero or not finite."""
        with torch.autocast(rows.device.type, enabled=False):
            rows = gathered(rows.to(torch.promote_types(rows.dtype, self.cov.dtype)))
            centred = rows - rows.mean(0)
            cov = centred.T @ centred / len(rows)
        variance = cov.trace()
        usable = (variance > 0) & (variance < float("inf"))
        weight = self.momentum / (1 - (1 - self.momentum) ** (self.n_steps + 1))
        mean = self.cov.lerp(cov.to(self.cov), weight.to(self.cov))
        self.cov.copy_(torch.where(usable, mean, self.cov))
        self.n_steps.add_(usable)


def add_isobn(
    model: Any, beta: float | None = None, eps: float | None = None, momentum: float | None = None
) -> Any:
    """Put an :class:`IsoBNLayer` before the last linear layer of a classifier.

    The layer becomes the submodule ``isobn`` of that linear layer; all other names stay the same.
    When the model is saved, the scale is multiplied into the weight of the head. Transformers can
    therefore load the checkpoint without isoadapt, and it predicts as the trained model does in
    evaluation mode. The statistics and the weight without the scale are saved under additional
    keys, from which ``load_state_dict`` and a resumed Trainer restore the layer.

    Parameters
    ----------
    model : PreTrainedModel, str or path-like
        A model for sequence classification, which is modified in place. Or a folder in which such
        a model was saved with IsoBN, to train it further or to inspect it.
    beta, eps, momentum : float, default=None
        Parameters of :class:`IsoBNLayer`. None: the values saved in the folder; for a model, 0.5,
        1e-3 and 0.05.

    Returns
    -------
    PreTrainedModel
        The model with the layer.

    Raises
    ------
    OSError
        If the folder cannot be loaded.
    ValueError
        If the model has no linear classifier head or already has IsoBN, if the folder was saved
        without IsoBN, or if a parameter is out of its range.

    Notes
    -----
    ``from_pretrained`` of transformers reports the keys with ``isobn`` as unexpected. It does not
    need them. Decoders such as GPT-2 apply the head at every position of a text. Their statistics
    are those of all positions, including padding.

    Examples
    --------
    >>> from transformers import AutoModelForSequenceClassification
    >>> from isoadapt.finetune import add_isobn
    >>> model = AutoModelForSequenceClassification.from_pretrained("my-model")  # doctest: +SKIP
    >>> trainer = Trainer(model=add_isobn(model), ...)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    >>> trainer.save_model("my-model-isobn")  # doctest: +SKIP
    >>> model = add_isobn("my-model-isobn")  # to train it further  # doctest: +SKIP
    """
    given = {"beta": beta, "eps": eps, "momentum": momentum}
    settings = {name: value for name, value in given.items() if value is not None}
    if isinstance(model, str | os.PathLike):
        return _load(Path(model).expanduser(), settings)
    _attach(model, settings)
    return model


def _attach(model: Any, settings: dict[str, float]) -> nn.Linear:
    """Attach the layer to the head of a model and return the head."""
    if not is_classifier(model):
        raise ValueError(
            f"model is a {type(model).__name__}; IsoBN is placed before the head of a model for "
            "sequence classification: pass such a model, or its folder"
        )
    head = find_last_linear(model)
    if hasattr(head, "isobn"):
        raise ValueError(
            f"{type(model).__name__} already has IsoBN ({head.isobn}); to start again, load the "
            "model without it and call add_isobn on that"
        )
    layer = IsoBNLayer(head.in_features, **settings)
    head.isobn = layer.to(head.weight.device).train(head.training)
    head.register_forward_pre_hook(_scale_input)
    head.register_state_dict_post_hook(_fold)
    head.register_load_state_dict_pre_hook(_unfold)
    names = ("beta", "eps", "momentum")
    model.config.isoadapt_isobn = {name: getattr(layer, name) for name in names}
    return head


def _scale_input(head: Any, inputs: tuple[Tensor]) -> Tensor:
    """Forward pre-hook of the head: scale its input."""
    return head.isobn(inputs[0])


def _fold(head: Any, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Hook of ``state_dict``: save the scaled weight, and the unscaled one as ``isobn.weight``."""
    weight = state[f"{prefix}weight"]
    state[f"{prefix}isobn.weight"] = weight
    state[f"{prefix}weight"] = (weight.detach() * head.isobn.scale()).to(weight.dtype)


def _unfold(head: Any, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Hook of ``load_state_dict``: load the unscaled weight if it was saved."""
    if f"{prefix}isobn.weight" in state:
        state[f"{prefix}weight"] = state.pop(f"{prefix}isobn.weight")


def _load(folder: Path, settings: dict[str, float]) -> Any:
    """Load a checkpoint that was saved with IsoBN."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"model={str(folder)!r} is not a folder that save_pretrained wrote")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    state = {}
    for file in weight_files(folder):  # raises unless they are safetensors files in this folder
        with safe_open(file, "pt") as weights:
            for key in [key for key in weights.keys() if ".isobn." in key]:  # noqa: SIM118
                state[f"isobn.{key.rpartition('.isobn.')[2]}"] = weights.get_tensor(key)
    with quiet():
        config = AutoConfig.from_pretrained(folder, **options)
        own = getattr(config, "isoadapt_isobn", None)
        if own is None or set(state) != {f"isobn.{name}" for name in _STATE}:
            raise ValueError(
                f"model={str(folder)!r} was saved without IsoBN; to add it, pass the loaded model: "
                "add_isobn(AutoModelForSequenceClassification.from_pretrained(...))"
            )
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, **options
        )
    head = _attach(model, own | settings)
    head.load_state_dict(state, strict=False)  # the bias is loaded already
    return model
