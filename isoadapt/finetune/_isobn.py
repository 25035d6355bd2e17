"""IsoBN in training: before the classifier, with moving statistics, saved with the checkpoint."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isoadapt.adapters import isobn_scale
from isoadapt.encoders import find_last_linear, is_classifier, quiet, weight_files
from isoadapt.finetune._ranks import gathered

_STATE = ("cov", "n_steps", "weight")  # kept under "isobn." beside the head's weight


class IsoBNLayer(nn.Module):
    """Scale the features of a batch as :class:`~isoadapt.IsoBN` does, from moving statistics.

    In training mode the covariance of the batch (1/n, in float32 at least) enters an exponential
    moving average with bias correction, before use; in evaluation mode the average stays. The
    scale carries no gradient. In a module that is cast to half precision the average stays in
    float32. Until the first training step the layer is the identity. In a
    distributed run the batch is that of all processes.

    Parameters
    ----------
    n_features : int
        Width d of the rows.
    beta : float, default=0.5
        How strongly to scale, in [0, 1]; 0 changes nothing.
    eps : float, default=1e-3
        Added to every denominator, more than 0.
    momentum : float, default=0.05
        Weight of the new batch in the average, in (0, 1].

    Attributes
    ----------
    cov : Tensor of shape (n_features, n_features)
        The average, bias corrected: after k equal batches it is their covariance.
    n_steps : Tensor of shape ()
        Batches in it. One without variance (a single row, equal rows) or with values that are
        not finite is not counted and changes nothing.

    Raises
    ------
    ValueError
        If a parameter is out of its range, or the rows have another width.

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
        if n_features < 1:
            raise ValueError(f"n_features={n_features!r} must be 1 or more")
        if not 0 <= beta <= 1:
            raise ValueError(f"beta={beta!r} must lie in [0, 1]")
        if not 0 < eps < float("inf"):
            raise ValueError(f"eps={eps!r} must be more than 0")
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum={momentum!r} must lie in (0, 1]")
        self.n_features, self.beta, self.eps, self.momentum = n_features, beta, eps, momentum
        self.register_buffer("cov", torch.zeros(n_features, n_features))
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Scale rows, and in training mode learn from them first.

        Parameters
        ----------
        x : Tensor of shape (..., n_features)
            Rows.

        Returns
        -------
        Tensor of shape (..., n_features)
            Scaled rows, of the same dtype.
        """
        if x.shape[-1:] != (self.n_features,):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; IsoBNLayer(n_features={self.n_features}) needs "
                f"(..., {self.n_features})"
            )
        if self.training:
            self._track(x.detach().reshape(-1, self.n_features))
        return (x * self.scale()).to(x.dtype)

    def scale(self) -> Tensor:
        """Give the present scale.

        Returns
        -------
        Tensor of shape (n_features,)
            Ones before the first training step.
        """
        return torch.where(self.n_steps > 0, isobn_scale(self.cov, self.beta, self.eps), 1.0)

    def extra_repr(self) -> str:
        """Name the parameters.

        Returns
        -------
        str
        """
        return f"{self.n_features}, beta={self.beta}, eps={self.eps}, momentum={self.momentum}"

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move or cast the layer, its average to no less than float32."""
        cov = self.cov
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.cov.dtype, torch.float32)
        if self.cov.dtype != dtype:
            self.cov = cov.to(self.cov.device, dtype)
        return self

    @torch.no_grad()
    def _track(self, rows: Tensor) -> None:
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
    model: Any,
    beta: float | None = None,
    eps: float | None = None,
    momentum: float | None = None,
) -> Any:
    """Put an :class:`IsoBNLayer` before the last linear layer of a classifier.

    The layer is that head's submodule ``isobn``; no other name changes. Saving folds the scale
    into the head's weight, so that the checkpoint is one that plain transformers loads and
    predicts with as the trained model does in evaluation mode; the statistics and the weight
    without the scale lie beside it. ``load_state_dict`` and a resumed Trainer read those.

    Parameters
    ----------
    model : PreTrainedModel, str or path-like
        A model for sequence classification, changed in place; or a folder with such a model and
        its IsoBN, to be trained on or looked at.
    beta, eps, momentum : float, default=None
        As for the layer. None: those of the folder, else 0.5, 1e-3 and 0.05.

    Returns
    -------
    PreTrainedModel
        The model.

    Raises
    ------
    OSError
        If the folder cannot be loaded.
    ValueError
        If the model has no linear classifier head or has IsoBN already, if the folder holds none,
        or if a parameter is out of its range.

    Notes
    -----
    A plain ``from_pretrained`` of the folder reports the keys with ``isobn`` as unexpected; it
    needs none of them. Decoders, such as GPT-2, read the head at every position of a text: the
    statistics are then those of all positions, padding included.

    Examples
    --------
    >>> from transformers import AutoModelForSequenceClassification
    >>> from isoadapt.finetune import add_isobn
    >>> model = AutoModelForSequenceClassification.from_pretrained("my-model")  # doctest: +SKIP
    >>> trainer = Trainer(model=add_isobn(model), ...)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    >>> trainer.save_model("my-model-isobn")  # doctest: +SKIP
    >>> model = add_isobn("my-model-isobn")  # to be trained on  # doctest: +SKIP
    """
    given = {"beta": beta, "eps": eps, "momentum": momentum}
    settings = {name: value for name, value in given.items() if value is not None}
    if isinstance(model, str | os.PathLike):
        return _load(Path(model).expanduser(), settings)
    _attach(model, settings)
    return model


def _attach(model: Any, settings: dict[str, float]) -> nn.Linear:
    """Put the layer before the head, which is given back."""
    if not is_classifier(model):
        raise ValueError(
            f"model is a {type(model).__name__}; IsoBN stands before the head of a model for "
            "sequence classification: pass one, or its folder"
        )
    head = find_last_linear(model)
    if hasattr(head, "isobn"):
        raise ValueError(
            f"{type(model).__name__} has IsoBN already ({head.isobn}); to start anew, add it to a "
            "freshly loaded model"
        )
    layer = IsoBNLayer(head.in_features, **settings)
    head.isobn = layer.to(head.weight.device).train(head.training)
    head.register_forward_pre_hook(_scale_input)
    head.register_state_dict_post_hook(_fold)
    head.register_load_state_dict_pre_hook(_unfold)
    model.config.isoadapt_isobn = {
        "beta": layer.beta,
        "eps": layer.eps,
        "momentum": layer.momentum,
    }
    return head


def _scale_input(head: Any, inputs: tuple[Tensor]) -> Tensor:
    return head.isobn(inputs[0])


def _fold(head: Any, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    weight = state[f"{prefix}weight"]
    state[f"{prefix}isobn.weight"] = weight
    state[f"{prefix}weight"] = (weight.detach() * head.isobn.scale()).to(weight.dtype)


def _unfold(head: Any, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    if f"{prefix}isobn.weight" in state:
        state[f"{prefix}weight"] = state.pop(f"{prefix}isobn.weight")


def _load(folder: Path, settings: dict[str, float]) -> Any:
    """Load a checkpoint with its IsoBN."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    state = _saved_state(folder)
    weight_files(folder)  # refuses those that are not safetensors in the folder
    with quiet():
        config = AutoConfig.from_pretrained(folder, **options)
        own = getattr(config, "isoadapt_isobn", None)
        if own is None or set(state) != {f"isobn.{name}" for name in _STATE}:
            raise ValueError(
                f"model={str(folder)!r} holds no IsoBN; for a new one pass the loaded model: "
                "add_isobn(AutoModelForSequenceClassification.from_pretrained(...))"
            )
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, **options
        )
    head = _attach(model, own | settings)
    head.load_state_dict(state, strict=False)  # the bias is there
    return model


def _saved_state(folder: Path) -> dict[str, Tensor]:
    """Read what a checkpoint's weights hold of IsoBN, under the names that it has in the head."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"model={str(folder)!r} is no folder with safetensors weights; pass one made by "
            "save_pretrained of a model with IsoBN"
        )
    found = {}
    for file in files:
        try:
            with safe_open(file, "pt") as weights:
                for key in weights.keys():  # noqa: SIM118 - it is no mapping
                    _, dot, name = key.rpartition(".isobn.")
                    if dot:
                        found[f"isobn.{name}"] = weights.get_tensor(key)
        except SafetensorError as error:
            raise OSError(f"{file} is damaged ({error}); copy it again") from error
    return found
