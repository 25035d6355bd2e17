"""Fine-tuning of a text classifier with one function call: texts and labels in, checkpoint out."""

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.files import CHECKPOINT, atomic_folder, check_output_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import reason, shows_progress
from isoadapt._utils.sklearn_private import Interval, StrOptions, validate_params
from isoadapt._utils.state import own_state
from isoadapt.encoders._backbone import position_limit
from isoadapt.encoders._folder import (
    check_files,
    checkpoint_folder,
    fault_in,
    transformer_folder,
    weight_files,
)
from isoadapt.encoders._models import quiet
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._tokenization import encoded_parts
from isoadapt.finetune._penalties import PENALTIES, PLACES
from isoadapt.finetune._targets import Targets, as_targets, check_has_no_columns, read_items


@validate_params(
    {
        "model": [str, os.PathLike],
        "output_folder": [str, os.PathLike],
        "penalty": [StrOptions(set(PENALTIES)), nn.Module, None],
        "lam": [Interval(Real, None, None, closed="neither"), None],
        "balance": [StrOptions({"ema", "cumulative"}), None],
        "where": [StrOptions(set(PLACES)), Integral, list, tuple, None],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "warmup": [Interval(Real, 0, 1, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": ["boolean"],
        "freeze_embeddings": ["boolean"],
        "max_length": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "random_state": [Interval(Integral, 0, None, closed="left"), None],
        "overwrite": ["boolean"],
        "verbose": ["verbose"],
    },
    prefer_skip_nested_validation=True,
)
@own_state(models=True)
def finetune_text_classifier(
    model: str | os.PathLike[str],
    texts: Any,
    labels: Any,
    output_folder: str | os.PathLike[str],
    *,
    penalty: str | nn.Module | None = None,
    lam: float | None = None,
    balance: str | None = None,
    where: str | int | Sequence[int] | None = None,
    class_weight: str | dict[Any, float] | None = None,
    epochs: int = 3,
    lr: float = 5e-5,
    batch_size: int = 32,
    warmup: float = 0.1,
    weight_decay: float | None = None,
    shuffle: bool = True,
    freeze_embeddings: bool = False,
    max_length: int = 128,
    device: str | torch.device = "auto",
    random_state: int | None = None,
    overwrite: bool = False,
    verbose: int = 0,
) -> Path:
    """Fine-tune a transformer for classification or regression and save it as a checkpoint.

    Weights are trained in float32 with AdamW. The learning rate has a linear warm-up and a linear
    decay to 0, gradients are clipped to norm 1, and each batch holds texts of similar length if
    they are shuffled. Training is run by :class:`~isoadapt.finetune.IsotropyTrainer`; use that
    class directly for settings that this function does not have.

    Parameters
    ----------
    model : str or path-like
        A folder written by ``save_pretrained`` or a name on the Hugging Face Hub. The weights must
        be safetensors files. A head of the right size is kept and trained further; any other head
        is replaced by a new one. The checkpoint may have been trained for another task, such as
        a classifier as the start of a regression. Of a sentence-transformers folder, only the
        transformer and its tokenizer are fine-tuned and saved, not the other modules. A PEFT
        adapter must first be merged into its base model with ``merge_and_unload`` of peft. Code
        that comes with a checkpoint is never executed.
    texts : sequence of str or of pairs of str
        Texts as a list, tuple, 1-D array, Series or torch Dataset of str. Pairs as a list of
        2-tuples, an array of shape (n, 2), a two-column DataFrame or a torch Dataset of 2-tuples.
    labels : array-like of shape (n,) or (n, k)
        Integers or strings train a classifier. Strings, and integers other than 0..C-1, are saved
        as the names of its classes. If they are the names or ids of the classes of `model`, these
        keep their outputs. Floats train a regression with one output and the squared error, unless
        they are two whole numbers, which are taken as classes with a warning. Several columns of 0
        and 1 train a multi-label classifier, a sigmoid for each, with the binary cross-entropy, and
        its labels are named like the columns of a table. Tensors and torch Datasets are accepted.
    output_folder : str or path-like
        The folder to write. It appears only when the checkpoint is complete. After an error or an
        interrupt nothing is left, and parent folders that were created for it are removed.
    penalty : {"anchor", "istar", "cosreg", "spectrum-control", "topological-entropy", \
            "isotropy-layer"}, Module or None, default=None
        Penalty that is added to the task loss: a loss of :mod:`isoadapt.losses`, or one by name.
        "anchor" is 1 minus the mean cosine between the mean-pooled vectors of the texts and those
        of `model`, which are computed once, before the training. The others are methods with the
        parameters of their papers. "istar" is
        ``IsoScoreLoss(zeta=0.2, form="linear")``, "cosreg" ``CosRegLoss()``, "spectrum-control"
        ``SpectrumControlLoss()``, "topological-entropy" ``PersistentEntropyLoss()``,
        "isotropy-layer" ``IsoScoreLoss()``.
    lam : float, default=None
        Weight of the penalty: the loss is task loss + lam · penalty. With "istar", a negative
        weight lowers isotropy and a positive weight raises it. None: 1, for "anchor" 0.1.
    balance : {"ema", "cumulative"} or None, default=None
        How the two losses are scaled to the same size, see :class:`~isoadapt.losses.JointLoss`.
    where : {"head_input", "mean", "last", "all"}, int or sequence of int, default=None
        Which vectors are penalised. "head_input": the vectors that enter the head. "mean": the
        mean of the tokens of the last layer, one vector for each text. "last": the tokens of the
        last layer. "all": the tokens of all layers. An integer or a sequence of integers: the
        tokens of these layers, where 1 is the first layer. None: "mean" for "anchor", which takes
        no other vectors, "all" for "istar", "last" for "cosreg", "head_input" for the others.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the cross-entropy of labels (n,), as in scikit-learn: positive by
        label, where one that is left out has weight 1, or inversely proportional to its frequency.
    epochs : int, default=3
        Number of passes over the texts.
    lr : float, default=5e-5
        Highest learning rate.
    batch_size : int, default=32
        Texts per batch.
    warmup : float, default=0.1
        Share of the steps over which the learning rate rises. A training of one step has none.
    weight_decay : float, default=None
        Weight decay, applied to all weights except biases and normalisation layers. None: one
        tenth of `lr`.
    shuffle : bool, default=True
        Whether to shuffle the texts in each epoch. Otherwise batches are taken in the given order,
        so that texts which differ in one word, such as minimal pairs, can share a batch.
    freeze_embeddings : bool, default=False
        Whether to keep the embeddings of the tokens, half of the weights of a small model, as they
        are. This saves time, most in small batches.
    max_length : int, default=128
        Number of tokens that an input is truncated to, including special tokens. It must be
        greater than their number. A model with fewer positions truncates to its own limit.
    device : str or torch.device, default="auto"
        Device to train on. "auto" is "cuda" if available, else "cpu".
    random_state : int, default=None
        Seed of the new head, the order of the texts and dropout. On a CPU, the same seed and
        number of threads give the same checkpoint. Global random generators are not changed.
    overwrite : bool, default=False
        Whether to replace a checkpoint in `output_folder` that isoadapt wrote. A folder that
        holds any other file or folder is never replaced.
    verbose : int, default=0
        Above 0, show a progress bar if the standard error stream is a terminal.

    Returns
    -------
    Path
        The folder, to be loaded with ``AutoModelForSequenceClassification.from_pretrained`` or
        :func:`isoadapt.load_checkpoint`.

    Raises
    ------
    FileExistsError
        If `output_folder` holds files and `overwrite` is false, or if it holds files that may not
        be replaced.
    OSError
        If the model cannot be loaded or downloaded or is incomplete, or if the folder cannot be
        written.
    ImportError
        If accelerate is not installed.
    TypeError
        If the type of the texts or labels is not supported, or if the labels have several types.
    ValueError
        If the numbers of texts and labels differ, if there is only one class, if an integer label
        is negative, or if a label is not finite in float32. If `labels` has several columns with
        other values than 0 and 1, or `class_weight` is given without classes, for others or not
        positive. If the model does not have a layer in `where`, if `max_length` leaves no token for
        the text, or if `lam`, `balance` or `where` is given without a penalty. If the model is a
        PEFT adapter, its configuration is damaged, or its weights are not safetensors files in its
        own folder.
    FloatingPointError
        If the loss or the weights become infinite or NaN.

    Examples
    --------
    >>> from isoadapt.datasets import make_acceptability
    >>> from isoadapt.finetune import finetune_text_classifier
    >>> corpus = make_acceptability()
    >>> data = corpus.train_texts, corpus.train_labels
    >>> finetune_text_classifier("my-base", *data, "my-model", random_state=0)  # doctest: +SKIP
    PosixPath('.../my-model')
    """
    import_optional("accelerate", feature="finetune_text_classifier", extra="finetune")
    from isoadapt.finetune._training import train_classifier, training_arguments

    texts = read_items(texts)
    check_has_no_columns(texts)
    inputs = as_texts(texts)
    targets = as_targets(read_items(labels), len(inputs))
    torch_device = resolve_device(device)
    if penalty is None and where is not None:
        raise ValueError(f"where={where!r} has no effect without a penalty: pass penalty= too")
    seed = (torch.Generator().seed() if random_state is None else int(random_state)) % 2**32
    target = check_output_folder(output_folder, overwrite, model=model)
    has_one_step = epochs == 1 and len(inputs) <= batch_size  # whose rate would be 0
    settings = {
        "num_train_epochs": epochs,
        "learning_rate": lr,
        "per_device_train_batch_size": batch_size,
        "warmup_steps": 0.0 if has_one_step else warmup,
        "weight_decay": lr / 10 if weight_decay is None else weight_decay,
        "train_sampling_strategy": "group_by_length" if shuffle else "sequential",
    }
    with quiet(), _seeded(seed, torch_device):
        network, tokenizer = _load(model, targets)
        network.get_input_embeddings().requires_grad_(not freeze_embeddings)
        rows = _rows(network, tokenizer, inputs, targets, max_length)
        folder = Path(tempfile.gettempdir())  # exists, and nothing is written to it
        arguments = training_arguments(torch_device, seed, folder, network.config, **settings)
        show_progress = shows_progress(verbose)
        options = {"penalty": penalty, "lam": lam, "balance": balance, "where": where}
        options["compute_loss_func"] = targets.weighted_loss(class_weight, network.config)
        train_classifier(network, tokenizer, rows, arguments, show_progress, **options)
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as folder:
        network.eval().cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return target


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside the block, then restore all global generators and the current GPU."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    gpu = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), gpu:
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def _load(model: str | os.PathLike[str], targets: Targets) -> tuple[Any, Any]:
    """Load the model, configured for the labels, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    folder = transformer_folder(checkpoint_folder(model, None, trust_remote_code=False))
    check_files(folder, folder)
    weight_files(folder)  # raises unless the weights are safetensors files in this folder
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        targets.configure(config)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        network = AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
        )
    except Exception as error:  # damaged files make transformers raise errors of many classes
        raise OSError(
            f"model={str(model)!r} cannot be loaded ({fault_in(folder) or reason(error)}); pass a "
            "folder that save_pretrained of both the model and its tokenizer wrote, with "
            "safetensors weights, or check the name and the connection"
        ) from error
    vars(network.config).pop("isoadapt_isobn", None)  # the loaded head already includes the scale
    return network, tokenizer


def _rows(
    network: Any, tokenizer: Any, texts: Texts, targets: Targets, max_length: int
) -> list[dict[str, Any]]:
    """Tokenize the texts: one dict of token lists and the label per text."""
    limit = min(max_length, tokenizer.model_max_length, position_limit(network) or max_length)
    special = tokenizer.num_special_tokens_to_add(pair=texts.second is not None)
    if limit <= special:
        raise ValueError(
            f"max_length={limit} leaves no token for the text, because an input of this model has "
            f"{special} special tokens; choose max_length={special + 1} or more"
        )
    rows = []
    for columns in encoded_parts(tokenizer, texts, limit):
        names, values = columns.keys(), zip(*columns.values(), strict=True)
        rows += [dict(zip(names, row, strict=True)) for row in values]
    for row, label in zip(rows, targets.ids(network.config), strict=True):
        row["labels"] = label
    return rows
