"""From a batch of tokens to vectors, and how large a batch may be."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._pooling import HEAD_INPUT, Pooling

_CPU_TOKENS_PER_THREAD = 512


def embed_batch(
    backbone: Backbone, pooling: Pooling, layer: int, batch: dict[str, Tensor]
) -> Tensor:
    """Embed a batch.

    Parameters
    ----------
    backbone : Backbone
        The model.
    pooling : Pooling
        How a vector is made.
    layer : int
        The hidden state that is pooled, -1 for the last.
    batch : dict of str to Tensor
        Tokens and their attention mask, on the model's device.

    Returns
    -------
    Tensor of shape (B, d)
        Vectors.
    """
    inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
    if pooling.modes == (HEAD_INPUT,):
        return backbone.headless(**inputs).logits
    output = backbone.base(**inputs, output_hidden_states=layer != -1)
    hidden = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
    return pooling(hidden.float(), batch["attention_mask"])


@contextmanager
def explained_failure(backbone: Backbone, batch: dict[str, Tensor]) -> Iterator[None]:
    """Turn what a model's own code raises on a batch into a ValueError that says which batch."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a model's code may raise anything
        rows, width = batch["input_ids"].shape
        raise ValueError(
            f"{type(backbone.model).__name__} fails on {rows} text(s) of {width} tokens "
            f"({type(error).__name__}: {error}); some architectures accept certain lengths only, "
            "or need inputs beside the text, and cannot be used here: choose another checkpoint"
        ) from error


def vector_width(backbone: Backbone, pooling: Pooling) -> int:
    """Give the width of the vectors.

    Parameters
    ----------
    backbone : Backbone
        The model.
    pooling : Pooling
        How a vector is made.

    Returns
    -------
    int
        Columns.
    """
    if backbone.head is not None and pooling.modes == (HEAD_INPUT,):
        return backbone.head.in_features
    return backbone.model.config.get_text_config().hidden_size * len(pooling.modes)


def token_budget(batch_tokens: int, device: torch.device) -> int:
    """Give the tokens that a batch may hold: on a CPU not more than suits its caches.

    Parameters
    ----------
    batch_tokens : int
        Tokens asked for.
    device : torch.device
        Where the model is; "meta" if its weights are in ONNX Runtime, on the CPU.

    Returns
    -------
    int
        Tokens, padding included.
    """
    if device.type not in ("cpu", "meta"):
        return batch_tokens
    return min(batch_tokens, _CPU_TOKENS_PER_THREAD * torch.get_num_threads())
