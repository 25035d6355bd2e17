"""The joint loss of a fine-tuning run: task loss plus a penalty on points of a forward pass."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from isoadapt._utils.files import atomic_path
from isoadapt.encoders._backbone import find_last_linear, is_classifier
from isoadapt.encoders._pooling import MODES
from isoadapt.finetune._penalties import ALL, HEAD_INPUT, LAST, MEAN, OUTPUT_EMBEDDINGS, PENALTIES
from isoadapt.losses import JointLoss

Where = str | Sequence[int]

_PRIOR_COV, _WEIGHT = "prior_cov", "joint.weight"
_RTOL = 1e-3  # two evaluations of the same loss on a GPU may differ by this much


class Points(NamedTuple):
    """Vectors of a model, gradients included."""

    values: Tensor  # (n, d)
    rows: Tensor | None  # (n,), the row of the batch each vector belongs to; None for weights


def check_where(where: Any, model: Any) -> Where:
    """Check that a model has the vectors `where`; return it with layers as sorted indices."""
    where = [where] if isinstance(where, Integral) else where
    layers = where if isinstance(where, list | tuple) else ()
    are_layers = len(layers) > 0 and all(isinstance(layer, Integral) for layer in layers)
    if where == HEAD_INPUT:
        output_layer(model)
    elif where == OUTPUT_EMBEDDINGS:
        if getattr(model.get_output_embeddings(), "weight", None) is None:
            raise ValueError(
                f"where={where!r}: {type(model).__name__} has no output embeddings, which only "
                "language models have (causal, masked, sequence to sequence); choose "
                "'head_input', 'mean', 'last', 'all' or a list of layers"
            )
    elif where not in (MEAN, LAST, ALL) and not are_layers:
        raise ValueError(
            f"where={where!r} must be 'head_input', 'mean', 'last', 'all', 'output_embeddings' or "
            "a list of layers such as [1, 6]"
        )
    elif model.config.is_encoder_decoder:
        raise ValueError(
            f"where={where!r}: {type(model).__name__} has two stacks of layers, an encoder and "
            "a decoder; choose 'head_input' or 'output_embeddings'"
        )
    return where if isinstance(where, str) else _layers(where, model)


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
            "choose 'mean', 'last', 'all' or a list of layers"
        )
    return outside[-1]


class Watch:
    """Finds the points at a place in one forward pass, which must be called with `options`."""

    def __init__(self, model: Any, place: Where) -> None:
        self.model, self.place = model, place
        in_states = place not in (HEAD_INPUT, OUTPUT_EMBEDDINGS)
        self.options = {"output_hidden_states": True, "return_dict": True} if in_states else {}
        self._entered: Tensor

    def __enter__(self) -> Self:
        if self.place == HEAD_INPUT:
            self._handle = output_layer(self.model).register_forward_pre_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        if self.place == HEAD_INPUT:
            self._handle.remove()

    def _keep(self, _: nn.Module, entered: tuple[Tensor, ...]) -> None:
        self._entered = entered[0]

    def points(self, outputs: Any, inputs: Mapping[str, Any]) -> Points:
        """Return the points, without padding, for the outputs and inputs of the pass."""
        if self.place == OUTPUT_EMBEDDINGS:
            return Points(self.model.get_output_embeddings().weight, None)
        if self.place == HEAD_INPUT:
            vectors = self._entered
            if vectors.ndim == 3 and not is_classifier(self.model):
                return _tokens([vectors], self._counted(inputs, vectors))
            if vectors.ndim == 3:  # a decoder classifies every token, then picks the last one
                vectors = MODES["lasttoken"](vectors, self._not_padding(inputs, vectors))
            return Points(vectors, torch.arange(len(vectors), device=vectors.device))
        states = outputs.hidden_states
        if self.place == MEAN:
            vectors = MODES["mean"](states[-1], self._counted(inputs, states[-1]))
            return Points(vectors, torch.arange(len(vectors), device=vectors.device))
        if self.place == LAST:
            layers = states[-1:]
        else:
            layers = states[1:] if self.place == ALL else [states[i] for i in self.place]
        return _tokens(layers, self._counted(inputs, states[-1]))

    def text_keys(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return a number for each text of a batch (b,) that depends on its tokens alone."""
        ids = inputs["input_ids"].flatten(0, -2)
        rows = zip(ids.cpu(), self._counted(inputs, ids).bool().cpu(), strict=True)
        digests = [blake2b(row[kept].numpy(), digest_size=8).digest() for row, kept in rows]
        keys = [int.from_bytes(digest, "little", signed=True) for digest in digests]
        return torch.tensor(keys, device=ids.device)

    def _counted(self, inputs: Mapping[str, Any], states: Tensor) -> Tensor:
        """Return the mask (b, t) of the tokens that count, for their states (b, t, ...)."""
        mask = self._mask(inputs)
        return _ones(states) if mask is None else mask.reshape(-1, mask.shape[-1])

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


def _tokens(layers: Sequence[Tensor], mask: Tensor) -> Points:
    """Select the tokens of all layers, each (b, t, d), where the mask (b, t) is not 0."""
    kept = mask.flatten().nonzero().squeeze(1)
    rows = (kept // mask.shape[1]).repeat(len(layers))
    return Points(torch.cat([layer.flatten(0, 1)[kept] for layer in layers]), rows)


class Objective(nn.Module):
    """A copy of the penalty, the place of its points and its Σ_S, and the joint loss."""

    prior_cov: Tensor | None = None

    def __init__(
        self, penalty: Any, lam: Any, balance: str | None, smoothing: float, where: Any, model: Any
    ) -> None:
        super().__init__()
        if penalty is None and (lam != 1.0 or balance is not None):
            raise ValueError(
                f"lam={lam!r} and balance={balance!r} have no effect without a penalty: pass "
                "penalty=, or leave them out"
            )
        if penalty is not None and not isinstance(penalty, nn.Module):
            raise TypeError(
                f"penalty={penalty!r} must be one of {', '.join(PENALTIES)}, or a loss such as "
                "those of isoadapt.losses, or None"
            )
        if not isinstance(lam, Real) or not math.isfinite(lam):
            raise ValueError(f"lam={lam!r} must be a finite number")
        self.penalty: Any = copy.deepcopy(penalty)
        self.place: Where = check_where(where, model)
        if self.takes("texts") and where != MEAN:
            raise ValueError(
                f"where={where!r}: penalty='anchor' compares the mean-pooled vectors of texts; "
                "leave where out"
            )
        self.joint = JointLoss(float(lam), balance, smoothing)

    def needs_prior_cov(self) -> bool:
        """Whether the penalty takes Σ_S of the training rows, with a nonzero zeta."""
        zeta = torch.as_tensor(getattr(self.penalty, "zeta", 1.0))
        of_rows = self.takes("prior_cov") and self.place != OUTPUT_EMBEDDINGS
        return of_rows and bool((zeta != 0).any())

    def forward(
        self, task_loss: Tensor, points: Tensor, **known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the joint loss and the penalty of points (n, d), of which more may be known."""
        known["prior_cov"] = self.prior_cov
        taken = {name: each for name, each in known.items() if self.takes(name)}
        value = self.penalty(points, **taken)
        joint = self.joint(task_loss, value)  # raises unless the penalty is one number
        if points.requires_grad and not value.requires_grad and value * self.joint.weight != 0:
            raise ValueError(
                f"the penalty {self.penalty} returned {float(value):.4g}, which has no gradient "
                "and so no effect on training: compute it from the points with torch operations "
                "only, without detach(), item() or NumPy"
            )
        return joint, value

    def save(self, path: Path) -> None:
        """Write the state that training changes to a safetensors file, atomically."""
        kept = self.state_dict() | ({} if self.prior_cov is None else {_PRIOR_COV: self.prior_cov})
        del kept[_WEIGHT]
        state = {name: value.detach().cpu().clone() for name, value in kept.items()}
        with atomic_path(path) as temporary:
            save_file(state, temporary, {"where": repr(self.place)})

    def load(self, path: Path) -> bool:
        """Load the state from :meth:`save`; return whether it includes Σ_S for the same `where`."""
        with safe_open(path, "pt") as file:
            same_place = file.metadata() == {"where": repr(self.place)}
        state = load_file(path)
        prior_cov = state.pop(_PRIOR_COV, None)
        try:
            self.load_state_dict({**state, _WEIGHT: self.joint.weight})
        except RuntimeError as error:
            raise ValueError(
                f"{path} belongs to another penalty; resume with the penalty of that run"
            ) from error
        if same_place and prior_cov is not None:
            self.prior_cov = prior_cov.to(self.joint.weight.device)
        return same_place

    def takes(self, name: str) -> bool:
        """Whether the penalty has a parameter besides the points."""
        return (
            self.penalty is not None and name in inspect.signature(self.penalty.forward).parameters
        )


@torch.no_grad()
def divides_by_count(loss: Callable[[Any], Tensor], model: nn.Module, n_items: Any) -> bool | None:
    """Whether `loss(count)` depends on the label count; None if it is zero or not finite."""
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
