"""A plain fine-tuning loop."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from sklearn.utils._param_validation import Interval, validate_params
from torch import Tensor

from isoadapt._files import atomic_folder, check_output_folder
from isoadapt._torch import resolve_device
from isoadapt.encoders._models import quiet
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.finetune._targets import Targets, as_targets

_MAX_NORM = 1.0
_POOL = 50  # batches that are cut from one stretch of rows, sorted by length


@validate_params(
    {
        "model": [str, os.PathLike],
        "output_folder": [str, os.PathLike],
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "warmup": [Interval(Real, 0, 1, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left"), None],
        "max_length": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "random_state": [Interval(Integral, 0, None, closed="left"), None],
        "overwrite": ["boolean"],
        "verbose": ["verbose"],
    },
    prefer_skip_nested_validation=True,
)
def finetune_text_classifier(
    model: str | os.PathLike[str],
    texts: Any,
    labels: Any,
    output_folder: str | os.PathLike[str],
    *,
    epochs: int = 3,
    lr: float = 5e-5,
    batch_size: int = 32,
    warmup: float = 0.1,
    weight_decay: float | None = None,
    max_length: int = 128,
    device: str | torch.device = "auto",
    random_state: int | None = None,
    overwrite: bool = False,
    verbose: int = 0,
) -> Path:
    """Fine-tune a transformer with a new head, and save it as an ordinary checkpoint.

    AdamW, learning rate with linear warm-up and linear decay to 0, gradients clipped to norm 1,
    batches of texts of similar length. Everything is trained, in float32.

    Parameters
    ----------
    model : str or path-like
        A folder made by ``save_pretrained`` or a name on the Hugging Face Hub; safetensors only.
        A head of the right size is kept and trained on, any other is replaced.
    texts : sequence of str or of pairs of str
        List, tuple, 1-D array or Series of str; or pairs: list of 2-tuples, array of shape (n, 2)
        or two-column DataFrame.
    labels : array-like of shape (n,)
        Integers 0..C-1 or strings: a classifier, which knows the strings by name. Floats: a head
        with one output that predicts them (least squares).
    output_folder : str or path-like
        Where the checkpoint goes. It appears when it is whole; an error or an interrupt leaves
        nothing.
    epochs : int, default=3
        Passes over the texts.
    lr : float, default=5e-5
        Highest learning rate.
    batch_size : int, default=32
        Texts in a step.
    warmup : float, default=0.1
        Share of the steps over which the learning rate rises.
    weight_decay : float, default=None
        Weight decay of AdamW. None: a tenth of `lr`.
    max_length : int, default=128
        Tokens an input is truncated to, special tokens included.
    device : str or torch.device, default="auto"
        "auto" is "cuda" where there is one, else "cpu".
    random_state : int, default=None
        Seed of the new head, the order of the texts and dropout. On a CPU the same seed and
        number of threads give the same checkpoint. The global generators stay untouched.
    overwrite : bool, default=False
        Whether an existing folder may be replaced.
    verbose : int, default=0
        Above 0, show a progress bar if the standard error stream is a terminal.

    Returns
    -------
    Path
        The folder, which ``AutoModelForSequenceClassification.from_pretrained`` and
        :func:`isoadapt.load_checkpoint` load.

    Raises
    ------
    FileExistsError
        If the folder holds files and `overwrite` is false.
    OSError
        If the model cannot be had or the folder cannot be written.
    TypeError
        If texts or labels are of a kind that is not admitted.
    ValueError
        If texts and labels differ in number, there is one class only, or integer labels are not
        0..C-1.
    FloatingPointError
        If the loss is no longer finite.

    Examples
    --------
    >>> from isoadapt.datasets import make_acceptability
    >>> from isoadapt.finetune import finetune_text_classifier
    >>> corpus = make_acceptability()
    >>> finetune_text_classifier(
    ...     "sentence-transformers/all-MiniLM-L6-v2",
    ...     corpus.train_texts,
    ...     corpus.train_labels,
    ...     "acceptability-minilm",
    ...     lr=1e-4,
    ...     random_state=0,
    ... )  # doctest: +SKIP
    PosixPath('.../acceptability-minilm')
    """
    inputs = as_texts(texts)
    targets = as_targets(labels, len(inputs))
    target = check_output_folder(output_folder, overwrite)
    place = resolve_device(device)
    with _own_randomness(random_state, place):
        network, tokenizer = _load(model, targets)
        rows = _tokenize(tokenizer, inputs, max_length)
        network.to(place).train()
        loop = _Loop(network, tokenizer, rows, targets.values, batch_size, place)
        decay = lr / 10 if weight_decay is None else weight_decay
        loop.run(epochs, lr, warmup, decay, hidden=not (verbose and sys.stderr.isatty()))
    with quiet(), atomic_folder(target, overwrite) as folder:
        network.config.isoadapt_label_names = targets.named
        network.eval().cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return target


class _Loop:
    """One training run."""

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        rows: list[dict[str, list[int]]],
        targets: Tensor,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.network, self.tokenizer = network, tokenizer
        self.rows, self.targets = rows, targets
        self.batch_size, self.device = batch_size, device

    def run(self, epochs: int, lr: float, warmup: float, decay: float, hidden: bool) -> None:
        """Train; the global generator of torch is the source of randomness."""
        from tqdm.auto import tqdm

        steps = epochs * -(-len(self.rows) // self.batch_size)
        optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=lr, weight_decay=decay, fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: learning_rate(step, steps, warmup)
        )
        with tqdm(total=steps, unit=" batches", desc="Fine-tuning", disable=hidden) as bar:
            for _ in range(epochs):
                total = torch.zeros((), device=self.device)
                for rows in self._batches():
                    total += self._step(rows, optimiser)
                    schedule.step()
                    bar.update()
                if not torch.isfinite(total):
                    raise FloatingPointError(
                        f"the loss became {total.item()}; lower lr={lr} or lengthen warmup={warmup}"
                    )

    def _batches(self) -> Iterator[list[int]]:
        return length_batches([len(row["input_ids"]) for row in self.rows], self.batch_size)

    def _step(self, rows: list[int], optimiser: torch.optim.Optimizer) -> Tensor:
        batch = self.tokenizer.pad(
            [self.rows[i] for i in rows], return_tensors="pt", verbose=False
        ).to(self.device)
        loss = self.network(**batch, labels=self.targets[rows].to(self.device)).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), _MAX_NORM)
        optimiser.step()
        return loss.detach()


def learning_rate(step: int, steps: int, warmup: float) -> float:
    """Give the factor on the learning rate at a step: up to 1 linearly, then down to 0.

    Returns
    -------
    float
    """
    rising = warmup * steps
    if step < rising:
        return (step + 1) / (rising + 1)
    return (steps - step) / (steps - rising)


def length_batches(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Draw batches of rows of similar length, each row once, with torch's global generator.

    Parameters
    ----------
    lengths : list of int
        Length of each row.
    batch_size : int
        Rows in a batch; one batch may hold fewer.

    Yields
    ------
    list of int
        Rows.
    """
    order = torch.randperm(len(lengths)).tolist()
    batches = []
    for start in range(0, len(order), batch_size * _POOL):
        pool = sorted(order[start : start + batch_size * _POOL], key=lengths.__getitem__)
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    for i in torch.randperm(len(batches)).tolist():
        yield batches[i]


@contextmanager
def _own_randomness(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators inside the block; put them back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(torch.Generator().seed() if seed is None else seed)
        yield


def _load(model: str | os.PathLike[str], targets: Targets) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(model)
            network = AutoModelForSequenceClassification.from_pretrained(
                model,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                **targets.config,
            )
    except (OSError, ValueError) as error:
        raise OSError(
            f"model={str(model)!r} cannot be loaded ({str(error).strip().splitlines()[0]}); pass a "
            "folder made by save_pretrained of both the model and its tokenizer, with safetensors "
            "weights, or check the name and the connection"
        ) from error
    return network, tokenizer


def _tokenize(tokenizer: Any, texts: Texts, max_length: int) -> list[dict[str, list[int]]]:
    limit = min(max_length, tokenizer.model_max_length)
    columns = tokenizer(texts.first, texts.second, truncation=True, max_length=limit)
    return [{name: values[i] for name, values in columns.items()} for i in range(len(texts))]
