"""The joint loss of a fine-tuning run: task loss plus penalties on points of a forward pass."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from isoadapt._utils.files import atomic_path
from isoadapt._utils.messages import warn
from isoadapt.encoders._backbone import find_last_linear, is_classifier
from isoadapt.encoders._pooling import Pooling
from isoadapt.finetune._recipes import ALL, HEAD_INPUT, LAST, OUTPUT_EMBEDDINGS
from isoadapt.losses import JointLoss

Where = str | Sequence[int]

_LAST_TOKEN = Pooling(("lasttoken",))
_PRIOR_COV, _WEIGHT = "prior_cov.", "joint.weight"
_RTOL = 1e-3  # two evaluations of the same loss on a GPU may differ by this much


class Points(NamedTuple):
    """Vectors of a model, gradients included."""

    values: Tensor  # (n, d)
    rows: Tensor | None  # (n,), the row of the batch each vector belongs to; None for weights


def check_where(where: Any, model: Any) -> Where:
    """Check that a model has the vectors `where`; return it with layers as sorted indices."""
    if not hasattr(model, "get_output_embeddings"):
        raise TypeError(
            f"model is a {type(model).__name__}; pass a PreTrainedModel of transformers"
        )
    if where == OUTPUT_EMBEDDINGS:
        if getattr(model.get_output_embeddings(), "weight", None) is None:
            raise ValueError(
                f"where={where!r}: {type(model).__name__} has no output embeddings, which only "
                "language models have (causal, masked, sequence to sequence); choose "
                "'head_input', 'last', 'all' or a list of layers"
            )
    elif where == HEAD_INPUT:
        output_layer(model)
    elif where in (LAST, ALL) or _are_layers(where):
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"where={where!r}: {type(model).__name__} has two stacks of layers, an encoder and "
                "a decoder; choose 'head_input' or 'output_embeddings'"
            )
        return where if isinstance(where, str) else _layers(where, model)
    else:
        raise ValueError(
            f"where={where!r} must be 'head_input', 'last', 'all', 'output_embeddings' or a list "
            "of layers such as [1, 6]"
        )
    return where


def output_layer(model: Any) -> nn.Module:
    """Return a classifier's head, else the output embeddings, else the last Linear outside."""
    if is_classifier(model):
        return find_last_linear(model)
    head = model.get_output_embeddings()
    if head is not None:
        return head
    base = set(model.base_model.modules())
    outside = [m for m in model.modules() if isinstance(m, nn.Linear) and m not in base]
    if not outside:
        raise ValueError(
            f"where='head_input': {type(model).__name__} has no linear layer after its base model; "
            "choose 'last', 'all' or a list of layers"
        )
    return outside[-1]


class Watch:
    """Records the head's input in one forward pass, which must be called with `options`."""

    def __init__(self, model: Any, places: Sequence[Where]) -> None:
        self.model = model
        self._reads_head = HEAD_INPUT in places
        with_states = any(place not in (HEAD_INPUT, OUTPUT_EMBEDDINGS) for place in places)
        states = {"output_hidden_states": True, "return_dict": True}
        self.options = states if with_states else {}
        self._entered: Tensor | None = None

    def __enter__(self) -> Self:
        if self._reads_head:
            self._handle = output_layer(self.model).register_forward_pre_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        if self._reads_head:
            self._handle.remove()

    def _keep(self, _: nn.Module, entered: tuple[Tensor, ...]) -> None:
        self._entered = entered[0]

    def points(self, place: Where, outputs: Any, inputs: Mapping[str, Any]) -> Points:
        """Return the points of one place, without padding, for given outputs and inputs."""
        if place == OUTPUT_EMBEDDINGS:
            return Points(self.model.get_output_embeddings().weight, None)
        if place == HEAD_INPUT:
            return self._head_points(inputs)
        states = outputs.hidden_states
        if place == LAST:
            layers = [states[-1]]
        else:
            layers = list(states[1:]) if place == ALL else [states[int(i)] for i in place]
        return _tokens(layers, self._mask(inputs))

    def _head_points(self, inputs: Mapping[str, Any]) -> Points:
        entered = self._entered
        if entered is None:
            raise RuntimeError(
                f"where='head_input' is not available, since {type(self.model).__name__} did not "
                "call its last linear layer; choose 'last', 'all' or a list of layers"
            )
        if entered.ndim == 2:
            return Points(entered, torch.arange(len(entered), device=entered.device))
        if is_classifier(self.model):  # a decoder: it classifies every token, then picks the last
            states = _LAST_TOKEN(entered, self._not_padding(inputs, entered))
            return Points(states, torch.arange(len(states), device=states.device))
        return _tokens([entered], self._mask(inputs))

    def _mask(self, inputs: Mapping[str, Any]) -> Tensor | None:
        """Return the mask of the tokens that count, not padding; None if all of them do."""
        if self.model.config.is_encoder_decoder:
            labels = inputs.get("labels")
            if "decoder_attention_mask" in inputs:
                return inputs["decoder_attention_mask"]
            if labels is not None and labels.ndim == 2:
                return labels != -100
        if "attention_mask" in inputs:
            return inputs["attention_mask"]
        return self._mask_from_ids(inputs)

    def _mask_from_ids(self, inputs: Mapping[str, Any]) -> Tensor | None:
        padding = self.model.config.get_text_config().pad_token_id
        if padding is None or "input_ids" not in inputs:
            return None
        return inputs["input_ids"] != padding

    def _not_padding(self, inputs: Mapping[str, Any], states: Tensor) -> Tensor:
        """Return the mask with which decoders of transformers search for the last token."""
        found = self._mask_from_ids(inputs)
        return _ones(states) if found is None else found.long()


def _are_layers(where: Any) -> bool:
    return (
        isinstance(where, Sequence)
        and not isinstance(where, str)
        and len(where) > 0
        and all(isinstance(i, Integral) and not isinstance(i, bool) for i in where)
    )


def _layers(where: Sequence[int], model: Any) -> tuple[int, ...]:
    n_layers = model.config.get_text_config().num_hidden_layers
    wrong = [i for i in where if not -n_layers - 1 <= i <= n_layers]
    if wrong:
        raise ValueError(
            f"where={list(where)!r}: {type(model).__name__} has the hidden states 0 (the input of "
            f"the first layer) to {n_layers}, not {wrong[0]}"
        )
    return tuple(sorted({int(i) % (n_layers + 1) for i in where}))


def _ones(states: Tensor) -> Tensor:
    return torch.ones(states.shape[:2], dtype=torch.long, device=states.device)


def _tokens(layers: Sequence[Tensor], mask: Tensor | None) -> Points:
    """Select the tokens of all layers, each (b, t, d), where the mask (b, t) is not 0."""
    mask = _ones(layers[0]) if mask is None else mask.reshape(-1, mask.shape[-1])
    kept = mask.flatten().nonzero().squeeze(1)
    rows = (kept // mask.shape[1]).repeat(len(layers))
    return Points(torch.cat([layer.flatten(0, 1)[kept] for layer in layers]), rows)


class Objective(nn.Module):
    """Copies of the penalties, the points each is computed on, and the joint loss.

    The penalties P_i with weights w_i enter the joint loss as one penalty,
    ``sum_i w_i P_i / sum_i |w_i|`` with the weight ``sum_i |w_i|``. Without balancing this is the
    weighted sum. `places` has one entry per penalty; without a penalty, it has one entry, the
    place whose figures are logged. `prior_covs` holds Σ_S of each penalty or None.
    """

    def __init__(
        self, penalty: Any, lam: Any, balance: str | None, smoothing: float, where: Any, model: Any
    ) -> None:
        super().__init__()
        losses = _as_list(penalty)
        if not losses and (lam != 1.0 or balance is not None):
            raise ValueError(
                f"lam={lam!r} and balance={balance!r} have no effect without a penalty: pass "
                "penalty=, or leave them out"
            )
        self.penalties = nn.ModuleList(copy.deepcopy(losses))
        self.places: list[Where] = _places(where, len(losses), model)
        weights = _weights(lam, len(losses))
        total = sum(map(abs, weights))
        self.shares = [w / total if total else 1 / len(weights) for w in weights]
        self.joint = JointLoss(total, balance, smoothing)
        self.prior_covs: list[Tensor | None] = [None] * len(losses)

    def needs_prior_cov(self) -> list[int]:
        """Return the indices of the penalties that take `prior_cov` and have a nonzero zeta."""
        return [
            i
            for i, (penalty, place) in enumerate(zip(self.penalties, self.places, strict=False))
            if _takes(penalty, "prior_cov")
            and place != OUTPUT_EMBEDDINGS
            and bool(torch.as_tensor(getattr(penalty, "zeta", 1.0) != 0).any())
        ]

    def values(self, clouds: Sequence[Tensor], labels: Sequence[Tensor | None]) -> list[Tensor]:
        """Compute each penalty, a tensor of shape (), from its points (n, d) and classes (n,)."""
        found = []
        for penalty, share, place, cloud, classes, prior_cov in zip(
            self.penalties, self.shares, self.places, clouds, labels, self.prior_covs, strict=True
        ):
            options: dict[str, Any] = {}
            if _takes(penalty, "prior_cov"):
                options["prior_cov"] = prior_cov
            if _takes(penalty, "labels"):
                options["labels"] = classes
            value = penalty(cloud, **options)
            _check_value(value, penalty)
            is_constant = torch.is_grad_enabled() and not value.requires_grad and value != 0
            if is_constant and share * self.joint.weight != 0:
                _report_constant(value, penalty, place, cloud)
            found.append(value)
        return found

    def forward(self, task_loss: Tensor, penalties: Sequence[Tensor]) -> Tensor:
        """Compute the joint loss from the task loss and the output of :meth:`values`."""
        mixed = torch.stack(
            [share * value for share, value in zip(self.shares, penalties, strict=True)]
        )
        return self.joint(task_loss, mixed.sum())

    def save(self, path: Path) -> None:
        """Write the state that training changes to a safetensors file, atomically."""
        prior_covs = {f"{_PRIOR_COV}{i}": p for i, p in enumerate(self.prior_covs) if p is not None}
        kept = {**self.state_dict(), **prior_covs}
        del kept[_WEIGHT]
        state = {name: value.detach().cpu().clone() for name, value in kept.items()}
        with atomic_path(path) as temporary:
            save_file(state, temporary, self._metadata())

    def load(self, path: Path) -> bool:
        """Load the state from :meth:`save`; return whether it includes Σ_S for the same `where`."""
        with safe_open(path, "pt") as file:
            same_places = file.metadata() == self._metadata()
        state = load_file(path)
        prior_covs = {name: state.pop(name) for name in list(state) if name.startswith(_PRIOR_COV)}
        try:
            self.load_state_dict({**state, _WEIGHT: self.joint.weight})
        except RuntimeError as error:
            raise ValueError(
                f"{path} belongs to other penalties; resume with the penalties of that run"
            ) from error
        if same_places:
            for name, prior_cov in prior_covs.items():
                place = int(name.removeprefix(_PRIOR_COV))
                self.prior_covs[place] = prior_cov.to(self.joint.weight.device)
        return same_places

    def _metadata(self) -> dict[str, str]:
        return {"where": repr(self.places)}


def _check_value(value: Any, penalty: nn.Module) -> None:
    """Raise unless the value of a penalty is one floating point number."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"the penalty {penalty} returned a {kind}; it must return a tensor of one floating "
            "point number, computed from the points with torch operations"
        )
    if value.ndim:
        raise ValueError(
            f"the penalty {penalty} returned a tensor of shape {tuple(value.shape)}; it must "
            "return one number, of shape (): reduce it, for example with .mean() or .sum()"
        )


def _report_constant(value: Tensor, penalty: nn.Module, place: Where, points: Tensor) -> None:
    """Raise if a penalty drops the gradient of its points; warn if its points have none."""
    if points.requires_grad:
        raise ValueError(
            f"the penalty {penalty} returned {float(value):.4g}, which has no gradient and so no "
            "effect on training: compute it from the points with torch operations only, without "
            "detach(), item() or NumPy"
        )
    warn(
        f"the penalty {penalty} has no effect, because no parameter that is trained changes the "
        f"points of where={place!r}: train a layer before them (requires_grad_), or choose a later "
        "where"
    )


def _takes(penalty: nn.Module, name: str) -> bool:
    return name in inspect.signature(penalty.forward).parameters


def _as_list(penalty: Any) -> list[nn.Module]:
    if penalty is None:
        return []
    losses = list(penalty) if isinstance(penalty, list | tuple | nn.ModuleList) else [penalty]
    for loss in losses:
        if not isinstance(loss, nn.Module):
            raise TypeError(
                f"penalty holds {loss!r} ({type(loss).__name__}); it must be a loss such as those "
                "of isoadapt.losses, a list of losses, or None. The loss of I-STAR is "
                "IsoScoreLoss(zeta=0.2, form='linear')"
            )
    return losses


def _weights(lam: Any, n: int) -> list[float]:
    weights = list(lam) if isinstance(lam, list | tuple) else [lam] * n
    if len(weights) != n:
        raise ValueError(
            f"lam={lam!r} has {len(weights)} weights for {n} penalties; pass one weight for all, "
            "or one for each"
        )
    for weight in weights:
        if not isinstance(weight, Real) or not math.isfinite(weight):
            raise ValueError(f"lam={lam!r} must be finite: one number, or one for each penalty")
    return [float(weight) for weight in weights]


def _places(where: Any, n: int, model: Any) -> list[Where]:
    several = isinstance(where, list | tuple) and any(not isinstance(w, Integral) for w in where)
    if several and len(where) != max(n, 1):
        raise ValueError(
            f"where={where!r} names {len(where)} places for {n} penalties; pass one place for all, "
            "or one for each"
        )
    return [check_where(place, model) for place in (where if several else [where] * max(n, 1))]


@torch.no_grad()
def divides_by_count(loss: Callable[[Any], Tensor], model: nn.Module, n_items: Any) -> bool | None:
    """Compare the loss of a batch for `n_items` and for twice that label count.

    `loss` maps a label count to the loss, averaged over all processes. The result is None if the
    loss is zero or not finite. The signature of a model is not enough to decide: many models
    accept the count and ignore it.
    """
    training = model.training
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=devices):
        model.eval()
        try:
            once, twice = loss(n_items), loss(2 * n_items)
        finally:
            model.train(training)
    if not bool(once.isfinite()) or not bool(once):
        return None
    return bool((once - twice).abs() > _RTOL * once.abs())
