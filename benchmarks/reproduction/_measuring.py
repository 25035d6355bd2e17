"""Figures of a fine-tuned model: of its task, of the head's input, and of the tokens by layer."""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, matthews_corrcoef
from torch import Tensor

from benchmarks.reproduction._figures import task_score
from benchmarks.reproduction._statistics import pack
from isoadapt.encoders._texts import as_texts
from isoadapt.finetune._objective import HEAD_INPUT, Watch
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import anisotropy, spectrum
from isoadapt.metrics import isoscore_star, isotropy_report

BATCH_SIZE = 64
ZETA = 0.2  # ζ of every reported IsoScore*, as in paper 002
PRIOR_VECTORS = 250_000  # number of tokens of all layers for Σ_S, as in paper 002
OF_POINTS = ("isoscore", "ev1", "partition_isotropy", "partition_dispersion")

Array = NDArray[Any]


class Reading(NamedTuple):
    """Results of one pass over n texts in evaluation mode, without the input of the first layer.

    `embeddings` (n, d) is the input of the head and `outputs` (n, n_classes) the logits. `layers`
    has the Moments of the tokens of each layer, and `first_tokens` (n, d) the state of the first
    token of each text in the last layer.
    """

    embeddings: Tensor
    outputs: Tensor
    layers: list[Moments]
    first_tokens: Tensor

    def all_layers(self) -> Moments:
        """Return the moments of the tokens of all layers together."""
        union = Moments()
        for layer in self.layers:
            union.merge(layer)
        return union


@torch.inference_mode()
def read(network: Any, tokenizer: Any, texts: Any, max_length: int) -> Reading:
    """Run a classifier on batches of texts of similar length; rows keep the given order."""
    columns = tokenized(tokenizer, texts, max_length)
    layers = [Moments() for _ in range(network.config.num_hidden_layers)]
    parts: list[tuple[Tensor, ...]] = []
    order = _by_length(columns)
    for batch in _batches(network, tokenizer, columns, order):
        watches = [Watch(network, (k,)) for k in range(1, len(layers) + 1)]
        with Watch(network, HEAD_INPUT) as head:
            outputs = network(**batch, **watches[0].options)
        for layer, watch in zip(layers, watches, strict=True):
            layer.update(watch.points(outputs, batch).values.cpu())
        firsts = outputs.hidden_states[-1][:, 0]
        embeddings = head.points(outputs, batch).values
        parts.append((embeddings.cpu(), outputs.logits.cpu(), firsts.cpu()))
    embeddings, logits, firsts = _in_order(parts, order)
    return Reading(embeddings, logits, layers, firsts)


@torch.inference_mode()
def embed(network: Any, tokenizer: Any, texts: Any, max_length: int) -> tuple[Tensor, Tensor]:
    """Return the input of the head and the logits, without figures of the tokens."""
    columns = tokenized(tokenizer, texts, max_length)
    order = _by_length(columns)
    parts: list[tuple[Tensor, ...]] = []
    for batch in _batches(network, tokenizer, columns, order):
        with Watch(network, HEAD_INPUT) as watch:
            outputs = network(**batch, **watch.options)
        parts.append((watch.points(outputs, batch).values.cpu(), outputs.logits.cpu()))
    embeddings, logits = _in_order(parts, order)
    return embeddings, logits


def prior_rows(tokenizer: Any, texts: Any, max_length: int, n_layers: int, seed: int) -> list[int]:
    """Draw rows with 250,000 tokens over all layers, or return all rows if there are fewer."""
    lengths = np.array([len(ids) for ids in tokenized(tokenizer, texts, max_length)["input_ids"]])
    order = np.random.default_rng(seed).permutation(len(lengths))
    vectors = n_layers * np.cumsum(lengths[order])
    return order[: int(np.searchsorted(vectors, PRIOR_VECTORS)) + 1].tolist()


def tokenized(tokenizer: Any, texts: Any, max_length: int) -> Any:
    """Tokenize texts into lists by column."""
    inputs = as_texts(texts)
    return tokenizer(inputs.first, inputs.second, truncation=True, max_length=max_length)


def _by_length(columns: Any) -> NDArray[np.intp]:
    return np.argsort([len(ids) for ids in columns["input_ids"]], kind="stable")


def _batches(
    network: Any, tokenizer: Any, columns: Any, order: NDArray[np.intp]
) -> Iterator[dict[str, Tensor]]:
    """Yield padded batches in the given order, with the network in evaluation mode."""
    network.eval()
    for start in range(0, len(order), BATCH_SIZE):
        rows = {
            name: [values[i] for i in order[start : start + BATCH_SIZE]]
            for name, values in columns.items()
        }
        yield tokenizer.pad(rows, return_tensors="pt").to(network.device)


def _in_order(parts: Sequence[tuple[Tensor, ...]], order: NDArray[np.intp]) -> list[Tensor]:
    """Concatenate the batches and restore the order of the texts."""
    back = torch.from_numpy(np.argsort(order))
    return [torch.cat(part)[back] for part in zip(*parts, strict=True)]


def task_figures(task: str, labels: Array, outputs: Array) -> dict[str, Any]:
    """Evaluate logits; `metric` is that of the task, `dev` the packed predictions."""
    predicted = outputs.argmax(1)
    found = {
        "accuracy": float(accuracy_score(labels, predicted)),
        "matthews": float(matthews_corrcoef(labels, predicted)),
    }
    return {"metric": found[task_score(task)], **found, "dev": pack(labels, predicted)}


def anisotropies(points: Tensor) -> dict[str, float]:
    """Return the first two anisotropies of points, raw and centred."""
    found = {}
    for ending, center in (("", False), ("_centered", True)):
        variances = spectrum(points.float(), center)
        for k in (1, 2):
            found[f"anisotropy{k}{ending}"] = float(anisotropy(variances, k))
    return found


def embedding_figures(points: Tensor) -> dict[str, float]:
    """Return the geometry of the head's input; empty if all points are equal."""
    with warnings.catch_warnings():  # no warning on the bias: the corrected score is reported too
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        try:
            report = isotropy_report(points.numpy())
        except ValueError:
            return {}
    return {**anisotropies(points), **{name: getattr(report, name) for name in OF_POINTS}}


def token_figures(dev: Reading, prior: Reading | None) -> dict[str, Any]:
    """Return the geometry of the dev tokens; IsoScore* only if Σ_S of training tokens is given."""
    firsts = anisotropies(dev.first_tokens)
    return {
        **(_isoscore_star_figures(dev, prior) if prior else {}),
        "last_mean_norm": float(dev.layers[-1].mean.norm()),
        "first_token_anisotropy1": firsts["anisotropy1"],
        "first_token_anisotropy1_centered": firsts["anisotropy1_centered"],
    }


def _isoscore_star_figures(dev: Reading, prior: Reading) -> dict[str, Any]:
    layers = [_shrunk(*pair) for pair in zip(dev.layers, prior.layers, strict=True)]
    return {
        "isoscore_star": _shrunk(dev.all_layers(), prior.all_layers()),
        "layers_isoscore_star": layers,
        "last_isoscore_star": layers[-1],
    }


def log_figures(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return figures as the paper reports them: means over the last 30 % of the training steps.

    `batch_…` are figures of the points of a batch at the place of the penalty. `…_start` and
    `…_end` are means over the first and the last tenth of the steps.
    """
    logs = [entry for entry in history if "task_loss" in entry]
    tenth = max(1, len(logs) // 10)
    late = [entry for entry in logs if entry["step"] > 0.7 * logs[-1]["step"]]
    known = sorted({name for entry in logs for name in entry})
    found = {f"batch_{name}": _mean(late, name) for name in known if name.startswith("anisotropy")}
    name = "anisotropy1_centered"
    if name in known:
        found[f"batch_{name}_start"] = _mean(logs[:tenth], name)
        found[f"batch_{name}_end"] = _mean(logs[-tenth:], name)
    return found


def _shrunk(points: Moments, prior: Moments) -> float | None:
    try:
        return isoscore_star(points, prior_cov=prior.covariance().numpy(), zeta=ZETA)
    except ValueError:  # undefined for collapsed points
        return None


def _mean(entries: Sequence[dict[str, Any]], name: str) -> float:
    values = [entry[name] for entry in entries if name in entry]
    return float(np.mean(values)) if values else math.nan
