"""Tokens to vectors: batches with a token budget, the forward pass, and whether padding matters."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._pooling import HEAD_INPUT, MODES, LayersPooling, Pooling, width_after
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import Tokens, model_inputs

_LOCK = threading.Lock()  # of the probes for the influence of padding
_HELD = 4096  # vectors left on the device before they are copied to the host
_CPU_TOKENS_PER_THREAD = 512
# In a batch of both, the first text is padded, also with a tokenizer of characters.
PAIR = Texts(["It was far.", "It was far, and then the road ran on under the trees by a river."])
# Mean absolute differences, relative to the mean absolute value. In models of 6 to 24 layers,
# rounding alone causes 1e-6 to 3e-6 in float32 and 1.5 to 3.5 machine epsilons in half precision.
_TOLERANCE = 1e-5
_EPSILONS = 4


def embed_batches(
    blocks: Iterable[Tokens],
    embed: Callable[[dict[str, Tensor]], Tensor],
    *,
    batch_tokens: int,
    equal_lengths: bool,
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yield for each batch the numbers of its inputs (B,) and what `embed` returns for it.

    `batch_tokens` includes padding and is halved whenever the device runs out of memory. If a
    single row does not fit, torch.OutOfMemoryError is raised.
    """
    for tokens in blocks:
        start = 0
        while start < len(tokens.order):
            stop = tokens.stop(start, batch_tokens, equal_lengths)
            embedded = _try(embed, tokens.batch(start, stop))
            if embedded is None:
                batch_tokens = _halved(tokens, start, stop)
                continue
            yield tokens.order[start:stop], embedded
            start = stop


def run_batches(
    blocks: Generator[Tokens, None, None],
    embed: Callable[[dict[str, Tensor]], Tensor],
    out: NDArray[np.float32],
    *,
    batch_tokens: int,
    equal_lengths: bool,
    progress: Callable[[int], Any],
) -> None:
    """Embed every row and write the vectors (n, d) to `out` in the order of the inputs.

    Results are copied from the device in groups, so that an asynchronous device does not wait after
    each batch. `blocks` is closed at the end, also after an error. `progress` is called with the
    number of rows done.
    """
    held: list[tuple[NDArray[np.int64], Tensor]] = []

    def fetch() -> None:
        """Copy the vectors that are still on the device to `out`."""
        for rows, vectors in held:
            out[rows] = vectors.cpu().numpy()
        held.clear()

    n_held = 0
    with closing(blocks):  # ends the thread of the generator
        for rows, vectors in embed_batches(
            blocks, embed, batch_tokens=batch_tokens, equal_lengths=equal_lengths
        ):
            # A copy, because a view would keep all hidden states in memory.
            held.append((rows, vectors.to(torch.float32, copy=True)))
            progress(len(rows))
            n_held += len(rows)
            if n_held >= _HELD:
                fetch()
                n_held = 0
        fetch()


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy a batch to a device, without waiting for work that a GPU still has to do."""
    if device.type != "cuda":
        return {name: values.to(device) for name, values in batch.items()}
    pinned = {name: values.pin_memory() for name, values in batch.items()}
    return {name: values.to(device, non_blocking=True) for name, values in pinned.items()}


def _try(embed: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]) -> Tensor | None:
    """Embed a batch; return None if the device runs out of memory."""
    try:
        return embed(batch)
    except torch.OutOfMemoryError:
        pass  # the traceback keeps memory alive until the handler ends
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None


def _halved(tokens: Tokens, start: int, stop: int) -> int:
    """Return half the tokens of a batch that did not fit into memory; raise for a single row."""
    longest = int(tokens.lengths[start])
    if stop - start == 1:
        raise torch.OutOfMemoryError(
            f"one text of {longest} tokens does not fit into the device's memory; lower "
            "max_length, or choose device='cpu' or dtype='bfloat16'"
        )
    return longest * (stop - start) // 2


def embed_batch(
    backbone: Backbone, pooling: Pooling, layer: int, batch: dict[str, Tensor]
) -> Tensor:
    """Compute the vectors (B, d) of a batch on the model's device in one pass.

    `layer` is ignored where the pooling names its own hidden states.
    """
    inputs = backbone.accepted(batch)
    if isinstance(pooling, LayersPooling):
        return _embed_layers(backbone, pooling, inputs, batch["attention_mask"])
    if pooling.is_head_input:
        return backbone.headless(**inputs).logits
    output = backbone.base(**inputs, output_hidden_states=layer != -1)
    hidden, mask = output.last_hidden_state, batch["attention_mask"]
    if layer != -1:
        hidden = _cropped(output.hidden_states[layer], mask)
    return pooling(hidden.float(), mask)


def _embed_layers(
    backbone: Backbone, pooling: LayersPooling, inputs: dict[str, Tensor], mask: Tensor
) -> Tensor:
    """Compute the concatenated vectors (B, d) of several hidden states and the head's input."""
    network = backbone.headless if pooling.begins_with_head_input else backbone.base
    output = network(**inputs, output_hidden_states=True)
    # A classifier that has a decoder too returns the states of both.
    states = getattr(output, "encoder_hidden_states", None) or output.hidden_states
    vectors = [
        output.logits
        if mode == HEAD_INPUT
        else MODES[mode](_cropped(states[layer], mask).float(), mask)
        for mode, layer in pooling.parts
    ]
    return torch.cat([part.float() for part in vectors], dim=1)


def _cropped(hidden: Tensor, mask: Tensor) -> Tensor:
    """Remove the tokens that BigBird appends to fill its blocks of sparse attention."""
    return hidden[:, : mask.shape[1]]


@contextmanager
def explained_failure(backbone: Backbone, batch: dict[str, Tensor]) -> Iterator[None]:
    """Turn an error of a model's own code into a ValueError that describes the batch."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # the code of a model may raise any exception
        rows, width = batch["input_ids"].shape
        raise ValueError(
            f"{type(backbone.model).__name__} fails on {rows} text(s) of {width} tokens "
            f"({type(error).__name__}: {error}); unless this says what to do, choose another one: "
            "architectures that only accept certain lengths or other inputs are not supported"
        ) from error


def vector_width(backbone: Backbone, pooling: Pooling) -> int:
    """Return the number of columns of the vectors."""
    own = 0
    if backbone.head is not None and pooling.begins_with_head_input:
        own = backbone.head.in_features
    width = own + backbone.hidden_size * sum(mode != HEAD_INPUT for mode in pooling.modes)
    return reduce(lambda columns, step: width_after(step, columns), pooling.steps, width)


def column_names(backbone: Backbone, pooling: LayersPooling) -> list[str]:
    """Return the names of the columns of several hidden states, such as "layer2_mean_17"."""
    names = []
    for mode, layer in pooling.parts:
        stem = mode if mode == HEAD_INPUT else f"layer{layer}_{mode}"
        width = vector_width(backbone, Pooling((mode,)))
        names += [f"{stem}_{column}" for column in range(width)]
    return names


def token_budget(batch_tokens: int, device: torch.device) -> int:
    """Return the number of tokens in a batch, limited on a CPU to what suits its caches."""
    if device.type != "cpu":
        return batch_tokens
    return min(batch_tokens, _CPU_TOKENS_PER_THREAD * torch.get_num_threads())


def needs_equal_lengths(backbone: Backbone, pooling: Pooling) -> bool:
    """Return whether batches must hold rows of one length, because padding would change vectors.

    The first call for a model runs the probe, which costs two forward passes of short texts.
    """
    head = pooling.begins_with_head_input
    own, tokenizers = backbone.model.config.pad_token_id, backbone.tokenizer.pad_token_id
    if backbone.switches_attention:
        return True
    if (head and own is None) or (own is not None and own != tokenizers):
        return True  # the model would treat padding as text, or text as padding

    def probed(head: bool) -> bool:
        """Return the result of the probe of the head's input or of the hidden states."""
        key = (head, tokenizers, backbone.tokenizer.padding_side)
        if key not in backbone.probes:
            backbone.probes[key] = _padding_changes_vectors(backbone, head)
        return backbone.probes[key]

    with _LOCK:
        return any(probed(mode == HEAD_INPUT) for mode in pooling.modes)


@torch.inference_mode()
def _padding_changes_vectors(backbone: Backbone, head: bool) -> bool:
    """Return whether the vectors of a text differ between batches with and without padding."""
    tokens = model_inputs(backbone, PAIR, backbone.default_length)
    if tokens.lengths[0] == tokens.lengths[1]:
        return True  # the probe contains no padding, so it shows nothing
    alone = _states(backbone, head, tokens.batch(1, 2))
    try:
        padded = _states(backbone, head, tokens.batch(0, 2))[-len(alone) :]
    except ValueError:
        return True  # the model does not accept padding at all
    tolerance = max(_TOLERANCE, _EPSILONS * torch.finfo(backbone.model.dtype).eps)
    return not bool((padded - alone).abs().mean() <= tolerance * alone.abs().mean())


def _states(backbone: Backbone, head: bool, batch: dict[str, Tensor]) -> Tensor:
    """Compute the last row's head input (1, d), or last hidden states of all n tokens (n, d)."""
    batch = to_device(batch, backbone.model.device)
    inputs = backbone.accepted(batch)
    with explained_failure(backbone, batch):
        if head:
            return backbone.headless(**inputs).logits[-1:].float()
        hidden = backbone.base(**inputs).last_hidden_state
        width = backbone.hidden_size
        if hidden.shape[-1] != width:
            raise ValueError(f"its hidden states have {hidden.shape[-1]} columns, not {width}")
        return hidden[batch["attention_mask"].bool()].float()
