"""Figures of a fine-tuned model: of its task, of the head's input, and of the tokens by layer."""

import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, matthews_corrcoef
from torch import Tensor

from benchmarks.reproduction._records import pack
from isoadapt.encoders._texts import as_texts
from isoadapt.finetune._objective import HEAD_INPUT, Watch
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import anisotropy, spectrum
from isoadapt.metrics import isoscore_star, isotropy_report

METRICS = {"cola": "matthews", "mrpc": "accuracy", "rte": "accuracy"}
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


@torch.inference_mode()
def read(
    network: Any, tokenizer: Any, texts: Any, max_length: int, of_tokens: bool = True
) -> Reading:
    """Run a classifier on batches of texts of similar length; rows keep the given order."""
    network.eval()
    columns = tokenized(tokenizer, texts, max_length)
    order = np.argsort([len(ids) for ids in columns["input_ids"]], kind="stable")
    layers = [Moments() for _ in range(network.config.num_hidden_layers * of_tokens)]
    parts: list[tuple[Tensor, ...]] = []
    for chosen in np.split(order, range(BATCH_SIZE, len(order), BATCH_SIZE)):
        rows = {name: [values[i] for i in chosen] for name, values in columns.items()}
        batch = tokenizer.pad(rows, return_tensors="pt").to(network.device)
        with Watch(network, HEAD_INPUT) as head:
            outputs = network(**batch, output_hidden_states=True)
        states = [each.cpu() for each in outputs.hidden_states[1:]]
        for layer, tokens in zip(layers, states, strict=False):
            layer.update(tokens[batch["attention_mask"].cpu().bool()])
        embeddings = head.points(outputs, batch).values
        parts.append((embeddings.cpu(), outputs.logits.cpu(), states[-1][:, 0]))
    back = torch.from_numpy(np.argsort(order))
    embeddings, logits, firsts = (torch.cat(part)[back] for part in zip(*parts, strict=True))
    return Reading(embeddings, logits, layers, firsts)


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


def task_figures(task: str, labels: Array, outputs: Array) -> dict[str, Any]:
    """Evaluate logits; `metric` is that of the task, `dev` the packed predictions."""
    predicted = outputs.argmax(1)
    score = {"accuracy": accuracy_score, "matthews": matthews_corrcoef}[METRICS[task]]
    return {"metric": float(score(labels, predicted)), "dev": pack(labels, predicted)}


def anisotropies(points: Tensor, start: str = "") -> dict[str, float]:
    """Return the first two anisotropies of points, raw and centred."""
    spectra = {"": spectrum(points.float(), False), "_centered": spectrum(points.float(), True)}
    return {
        f"{start}anisotropy{k}{ending}": float(anisotropy(variances, k))
        for ending, variances in spectra.items()
        for k in (1, 2)
    }


def embedding_figures(points: Tensor) -> dict[str, float]:
    """Return the geometry of the head's input; empty if all points are equal."""
    with warnings.catch_warnings():  # claims are on the score without the correction of its bias
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        try:
            report = isotropy_report(points.numpy())
        except ValueError:
            return {}
    return {**anisotropies(points), **{name: getattr(report, name) for name in OF_POINTS}}


def token_figures(dev: Reading, prior: Reading) -> dict[str, Any]:
    """Return the geometry of the dev tokens; Σ_S of IsoScore* is that of training tokens."""
    layers = [_shrunk(*pair) for pair in zip(dev.layers, prior.layers, strict=True)]
    union = [reduce(Moments.merge, each.layers, Moments()) for each in (dev, prior)]
    return {
        "isoscore_star": _shrunk(*union),
        "layers_isoscore_star": layers,
        "last_isoscore_star": layers[-1],
        "last_mean_norm": float(dev.layers[-1].mean.norm()),
        **anisotropies(dev.first_tokens, "first_token_"),
    }


def _shrunk(points: Moments, prior: Moments) -> float | None:
    try:
        return isoscore_star(points, prior_cov=prior.covariance().numpy(), zeta=ZETA)
    except ValueError:  # undefined for collapsed points
        return None


def log_figures(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return figures as the paper reports them: means over the last 30 % of the training steps.

    `batch_…` are figures of the points of a batch at the place of the penalty. `…_start` and
    `…_end` are means over the first and the last tenth of the steps.
    """
    raw, centred = "anisotropy1", "anisotropy1_centered"
    logs = pd.DataFrame([entry for entry in history if "task_loss" in entry])
    logs = logs.reindex(columns=["step", raw, centred])  # figures may be undefined
    tenth, late = max(1, len(logs) // 10), logs[logs["step"] > 0.7 * logs["step"].iloc[-1]]
    parts = {"": late, "_start": logs[:tenth], "_end": logs[-tenth:]}
    means = {f"batch_{centred}{end}": float(part[centred].mean()) for end, part in parts.items()}
    return {f"batch_{raw}": float(late[raw].mean()), **means}
