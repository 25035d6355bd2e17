"""Fine-tuning of a text classifier with one function call: texts and labels in, checkpoint out."""

import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions, validate_params
from torch import nn

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.files import CHECKPOINT, atomic_folder, check_output_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import reason
from isoadapt.encoders._backbone import position_limit
from isoadapt.encoders._folder import (
    check_files,
    checkpoint_folder,
    transformer_folder,
    weight_files,
)
from isoadapt.encoders._models import quiet
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._tokenization import encoded_parts
from isoadapt.finetune._recipes import PENALTIES, PLACES, RECIPES, make_recipe, penalty_options
from isoadapt.finetune._targets import Targets, as_targets, check_has_no_columns, read_items


@validate_params(
    {
        "model": [str, os.PathLike],
        "output_folder": [str, os.PathLike],
        "penalty": [StrOptions(set(PENALTIES)), nn.Module, None],
        "lam": [Interval(Real, None, None, closed="neither")],
        "balance": [StrOptions({"ema", "cumulative"}), None],
        "where": [StrOptions(set(PLACES)), Integral, list, tuple, None],
        "recipe": [StrOptions(set(RECIPES)), None],
        "epochs": [Interval(Integral, 1, None, closed="left"), None],
        "lr": [Interval(Real, 0, None, closed="neither"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "warmup": [Interval(Real, 0, 1, closed="left"), None],
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
def finetune_text_classifier(
    model: str | os.PathLike[str],
    texts: Any,
    labels: Any,
    output_folder: str | os.PathLike[str],
    *,
    penalty: str | nn.Module | None = None,
    lam: float = 1.0,
    balance: str | None = None,
    where: str | int | Sequence[int] | None = None,
    recipe: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    warmup: float | None = None,
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
    labels : array-like of shape (n,)
        Integers 0..C-1 or strings train a classifier; strings are saved as the names of its
        classes. Floats train a regression with one output and the squared error. Tensors and
        torch Datasets are accepted too.
    output_folder : str or path-like
        The folder to write. It appears only when the checkpoint is complete. After an error or an
        interrupt nothing is left, and parent folders that were created for it are removed.
    penalty : {"istar", "cosreg", "spectrum-control", "topological-entropy", "isotropy-layer"}, \
            Module or None, default=None
        Penalty that is added to the task loss: a loss of :mod:`isoadapt.losses`, or a method by
        name, with the parameters of its paper. "istar" is ``IsoScoreLoss(zeta=0.2,
        form="linear")``, "cosreg" ``CosRegLoss()``, "spectrum-control"
        ``SpectrumControlLoss()``, "topological-entropy" ``PersistentEntropyLoss()``,
        "isotropy-layer" ``IsoScoreLoss()``.
    lam : float, default=1.0
        Weight of the penalty: the loss is task loss + lam · penalty. With "istar", a negative
        weight lowers isotropy and a positive weight raises it.
    balance : {"ema", "cumulative"} or None, default=None
        How the two losses are scaled to the same size, see :class:`~isoadapt.losses.JointLoss`.
    where : {"head_input", "last", "all"}, int or sequence of int, default=None
        Which vectors are penalised. "head_input": the vectors that enter the head. "last": the
        tokens of the last layer. "all": the tokens of all layers. An integer or a sequence of
        integers: the tokens of these layers, where 1 is the first layer. None: "all" for
        "istar", "last" for "cosreg", "head_input" for the others.
    recipe : {"topological-entropy", "istar", "isotropy-layer", "isotropy-calibration"} or None, \
            default=None
        Train with the optimiser, schedule, number of epochs and batch size of a paper, see Notes.
        A recipe does not set a penalty. `epochs`, `lr`, `batch_size`, `warmup` and `weight_decay`
        override its values.
    epochs : int, default=None
        Number of passes over the texts. None: the recipe's value, or 3 without a recipe.
    lr : float, default=None
        Highest learning rate. None: the recipe's value, or 5e-5 without a recipe.
    batch_size : int, default=None
        Texts per batch. None: the recipe's value, or 32 without a recipe.
    warmup : float, default=None
        Share of the steps over which the learning rate rises. None: the recipe's value, or 0.1
        without a recipe. A training of one step has no warm-up.
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
        Whether to replace a checkpoint in `output_folder` that was written by isoadapt or
        ``save_pretrained``. A folder that holds any other file or folder is never replaced.
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
        If the numbers of texts and labels differ, if there is only one class, if integer labels
        are not 0..C-1, or if a label is not finite in float32. If the model does not
        have a layer in `where`, if `max_length` leaves no token for the text, if `lam`, `balance`
        or `where` is given without a penalty, or if the recipe "isotropy-layer" cannot hold out a
        part of each class. If the model is a PEFT adapter, its configuration is damaged, or its
        weights are not safetensors files in its own folder.
    FloatingPointError
        If the loss or the weights become infinite or NaN.

    Notes
    -----
    The recipes change the following settings. Settings that a paper does not report are the same
    as without a recipe.

    - "topological-entropy": Adam, 10 epochs, lr 5e-5 (the value for CoLA; the paper uses 8e-5 for
      MRPC), batches of 64, warm-up 0.1, weight decay one tenth of lr.
    - "istar": 4 epochs, lr 3e-5, batches of 16 with gradients accumulated over two batches. These
      are the middle of the ranges that the paper tunes over. Mixed precision (float16) on a GPU.
    - "isotropy-layer": AdamW. 30 % of the texts are held out, stratified by class, and the epoch
      with the best accuracy on them is kept (the best R² for float labels). The paper does not
      report other settings for training its encoder.
    - "isotropy-calibration" (the paper of CosReg, spectrum control and the flow): 3 epochs, a
      constant lr of 2e-5, batches of 32. The paper uses 1e-5 for RoBERTa, and 5 epochs for MRPC
      and WNLI.

    References
    ----------
    "topological-entropy": Kudrjashov, Karpik and Klyshinsky, "Shrink the Longest", section 4.
    "istar": Rudman and Eickhoff, "Stable Anisotropic Regularization", section 4.1.
    "isotropy-layer": "Optimizing the performance of text classification models by improving the
    isotropy of the embeddings using a joint loss function", section 4.1. "isotropy-calibration":
    Ding et al., "On Isotropy Calibration of Transformers", appendix B.

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
    import_optional("accelerate", feature="finetune_text_classifier", extra="finetune")
    from isoadapt.finetune._training import train_classifier

    texts = read_items(texts)
    check_has_no_columns(texts)
    inputs = as_texts(texts)
    targets = as_targets(read_items(labels), len(inputs))
    torch_device = resolve_device(device)
    plan = make_recipe(
        recipe,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        warmup=warmup,
        weight_decay=weight_decay,
    )
    _check_held_out(targets, plan.validation)
    options = penalty_options(penalty, lam, balance, where)
    seed = (torch.Generator().seed() if random_state is None else int(random_state)) % 2**32
    target = check_output_folder(output_folder, overwrite, model=model)
    with quiet(), _seeded(seed, torch_device):
        network, tokenizer = _load(model, targets)
        network.get_input_embeddings().requires_grad_(not freeze_embeddings)
        train_classifier(
            network,
            tokenizer,
            _rows(network, tokenizer, inputs, targets, max_length),
            plan,
            device=torch_device,
            seed=seed,
            folder=Path(tempfile.gettempdir()),
            show_progress=bool(verbose) and sys.stderr.isatty(),
            shuffle=shuffle,
            **options,
        )
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as folder:
        network.config.isoadapt_label_names = targets.named
        network.eval().cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return target


def _check_held_out(targets: Targets, share: float) -> None:
    """Check that there are enough texts to hold out a share of them, stratified by class."""
    n_texts = len(targets.values)
    sizes = [n_texts] if targets.classes is None else torch.bincount(targets.values).tolist()
    fewest = min(sizes)
    if not share or (fewest >= 2 and math.ceil(share * n_texts) >= max(2, len(sizes))):
        return
    found, each = f"{n_texts} texts", ""
    if targets.classes is not None:
        rarest = sizes.index(fewest)
        label = targets.classes[rarest] if targets.named else rarest
        found, each = f"{fewest} of {n_texts} texts with the label {label!r}", " of each class"
    raise ValueError(
        f"recipe='isotropy-layer' holds out {share:.0%} of the texts{each} to choose the best "
        f"epoch, and {found} are too few for that: pass 4 or more{each}, or choose another recipe"
    )


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
            f"model={str(model)!r} cannot be loaded ({reason(error)}); pass a folder that "
            "save_pretrained of both the model and its tokenizer wrote, with safetensors weights, "
            "or check the name and the connection"
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
    for row, label in zip(rows, targets.values.tolist(), strict=True):
        row["labels"] = label
    return rows
