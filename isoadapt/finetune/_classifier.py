"""Fine-tuning a classifier from texts to a checkpoint."""

import math
import os
import random
import sys
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
from isoadapt._utils.errors import reason
from isoadapt._utils.folders import CHECKPOINT, atomic_folder, reserved_folder
from isoadapt._utils.optional import import_optional
from isoadapt.encoders import (
    CONFIG as PEFT_CONFIG,
    Texts,
    as_texts,
    check_files,
    checkpoint_folder,
    position_limit,
    quiet,
    transformer_folder,
    weight_files,
)
from isoadapt.finetune._containers import check_has_no_columns, read_items
from isoadapt.finetune._penalty import PENALTIES, PLACES, penalty_options
from isoadapt.finetune._recipes import RECIPES, make_recipe
from isoadapt.finetune._targets import Targets, as_targets


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
    max_length: int = 128,
    device: str | torch.device = "auto",
    random_state: int | None = None,
    overwrite: bool = False,
    verbose: int = 0,
) -> Path:
    """Fine-tune a transformer with a new head, and save it as an ordinary checkpoint.

    AdamW, learning rate with linear warm-up and linear decay to 0, gradients clipped to norm 1,
    batches of texts of similar length. Everything is trained, in float32. It is run by
    :class:`~isoadapt.finetune.IsotropyTrainer`, which has more to set.

    Parameters
    ----------
    model : str or path-like
        A folder made by ``save_pretrained`` or a name on the Hugging Face Hub; safetensors only.
        A head of the right size is kept and trained on, any other is replaced. The checkpoint may
        have been trained for another task, such as a classifier for the start of a regression.
        Of a sentence-transformers folder, the transformer and its tokenizer are fine-tuned and
        saved, without the other modules. A PEFT adapter must be merged into its base model first,
        with ``merge_and_unload`` of peft.
    texts : sequence of str or of pairs of str
        List, tuple, 1-D array, Series or torch Dataset of str; or pairs: list of 2-tuples, array of
        shape (n, 2), two-column DataFrame or torch Dataset of 2-tuples.
    labels : array-like of shape (n,)
        Integers 0..C-1 or strings: a classifier, which knows the strings by name. Floats: a head
        with one output that predicts them (least squares). Tensors and torch Datasets are
        admitted too.
    output_folder : str or path-like
        Where the checkpoint goes. It appears when it is whole; an error or an interrupt leaves
        nothing, the folders around it included that were made for it.
    penalty : {"istar", "cosreg", "spectrum-control", "topological-entropy", "isotropy-layer"}, \
            Module or None, default=None
        What joins the task's loss: a loss of :mod:`isoadapt.losses` with the parameters of your
        choice, or a method by name, with its own. "istar" is ``IsoScoreLoss(zeta=0.2,
        form="linear")``, "cosreg" ``CosRegLoss()``, "spectrum-control"
        ``SpectrumControlLoss()``, "topological-entropy" ``PersistentEntropyLoss()``,
        "isotropy-layer" ``IsoScoreLoss()``.
    lam : float, default=1.0
        Weight of the penalty: task loss + lam · penalty. For "istar" below zero lowers isotropy,
        above zero raises it.
    balance : {"ema", "cumulative"} or None, default=None
        How the two losses are brought to one size, see :class:`~isoadapt.losses.JointLoss`.
    where : {"head_input", "last", "all"}, int or sequence of int, default=None
        Which vectors are penalised: what enters the head, the last layer's tokens, the tokens of
        all layers, or those of the layers given, 1 being the first. None: "all" for "istar",
        "last" for "cosreg", "head_input" for all else.
    recipe : {"topological-entropy", "istar", "isotropy-layer", "isotropy-calibration"} or None, \
            default=None
        Train with the optimiser, schedule, epochs and batches of a paper, see Notes. It sets no
        penalty. `epochs`, `lr`, `batch_size`, `warmup` and `weight_decay` override it.
    epochs : int, default=None
        Passes over the texts. None: the recipe's, else 3.
    lr : float, default=None
        Highest learning rate. None: the recipe's, else 5e-5.
    batch_size : int, default=None
        Texts in a batch. None: the recipe's, else 32.
    warmup : float, default=None
        Share of the steps over which the learning rate rises. None: the recipe's, else 0.1.
    weight_decay : float, default=None
        Weight decay, of all weights but biases and those of norms. None: a tenth of `lr`.
    max_length : int, default=128
        Tokens an input is truncated to, special tokens included; fewer if the model has not so
        many positions.
    device : str or torch.device, default="auto"
        "auto" is "cuda" where there is one, else "cpu".
    random_state : int, default=None
        Seed of the new head, the order of the texts and dropout. On a CPU the same seed and
        number of threads give the same checkpoint. The global generators stay untouched.
    overwrite : bool, default=False
        Whether a checkpoint in the folder may be replaced that isoadapt or ``save_pretrained``
        wrote. A folder with any other file in it is kept, and so is one in which a file was
        changed after isoadapt wrote it.
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
        If the folder holds files and `overwrite` is false, or files that may not be replaced.
    OSError
        If the model cannot be had or is incomplete, or the folder cannot be written.
    ImportError
        If accelerate is not installed.
    TypeError
        If texts or labels are of a kind that is not admitted, or labels of several kinds.
    ValueError
        If texts and labels differ in number, there is one class only, integer labels are not
        0..C-1, a label is masked or not finite in float32, the model has no such layer, recipe
        "isotropy-layer" cannot hold out a part of each class, or `lam`, `balance` or `where` is
        given without a penalty. If the model is a PEFT adapter, its configuration is damaged, or
        its weights are not safetensors files in its own folder.
    FloatingPointError
        If the loss or the weights are no longer finite.

    Notes
    -----
    What the recipes change; the papers do not give anything else, and it is as without a recipe.

    - "topological-entropy": Adam, 10 epochs, lr 5e-5 (CoLA's; for MRPC give 8e-5), batches of 64,
      warm-up 0.1, decay a tenth of lr.
    - "istar": two batches of 16 a step, 4 epochs, lr 3e-5: the middle of the values that the paper
      tunes over; mixed precision (float16) on a GPU.
    - "isotropy-layer": AdamW, and 30 % of the texts, of each class alike, are held out; the epoch
      with the best accuracy (R² of floats) on them is kept. The paper gives nothing else of how
      its encoder is trained.
    - "isotropy-calibration", the paper of CosReg, spectrum control and flow: 3 epochs, a constant
      lr of 2e-5, batches of 32 (for RoBERTa give 1e-5, for MRPC and WNLI 5 epochs).

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
    place = resolve_device(device)
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
    with reserved_folder(output_folder, overwrite) as target:
        with quiet(), _own_randomness(seed, place):
            network, tokenizer = _load(model, targets)
            train_classifier(
                network,
                tokenizer,
                _rows(network, tokenizer, inputs, targets, max_length),
                plan,
                device=place,
                seed=seed,
                folder=target.parent,
                show_progress=bool(verbose) and sys.stderr.isatty(),
                **options,
            )
        with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as folder:
            network.config.isoadapt_label_names = targets.named
            network.eval().cpu().save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return target


def _check_held_out(targets: Targets, share: float) -> None:
    """Check that a share of the texts, of each class alike, can be held out and judged on."""
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
        f"epoch, and {found} are too few for that: pass 4 or more{each}, or another recipe"
    )


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside the block; afterwards put all global generators and the GPU in use back."""
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
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    outer = checkpoint_folder(model, None, trust_remote_code=False)
    folder = transformer_folder(outer)
    _check_no_adapter(model, outer, folder)
    check_files(folder, folder)
    weight_files(folder)  # refuses those that are not safetensors in the folder
    try:
        config = AutoConfig.from_pretrained(folder)
        targets.configure(config)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        network = AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # what a file holds decides which errors its readers raise
        raise OSError(
            f"model={str(model)!r} cannot be loaded ({reason(error)}); pass a "
            "folder made by save_pretrained of both the model and its tokenizer, with safetensors "
            "weights, or check the name and the connection"
        ) from error
    vars(network.config).pop("isoadapt_isobn", None)  # folded into the head as it is loaded
    return network, tokenizer


def _check_no_adapter(model: str | os.PathLike[str], *folders: Path) -> None:
    """Refuse a PEFT adapter: transformers would load its base model, and train the adapter only."""
    for folder in folders:
        if (folder / PEFT_CONFIG).is_file():
            raise ValueError(
                f"model={str(model)!r} holds a PEFT adapter ({folder / PEFT_CONFIG}), which cannot "
                "be fine-tuned here: merge it by peft.PeftModel.from_pretrained(base, folder)"
                ".merge_and_unload(), and pass the folder that save_pretrained makes of the result "
                "and of its tokenizer; if the folder holds a whole checkpoint as well, which is to "
                f"be trained without the adapter, copy it without {PEFT_CONFIG}"
            )


def _rows(
    network: Any, tokenizer: Any, texts: Texts, targets: Targets, max_length: int
) -> list[dict[str, Any]]:
    limit = min(max_length, tokenizer.model_max_length, position_limit(network) or max_length)
    columns = tokenizer(texts.first, texts.second, truncation=True, max_length=limit)
    columns["labels"] = targets.values.tolist()
    return [{name: values[i] for name, values in columns.items()} for i in range(len(texts))]
