"""The forward pass from a batch of tokens to vectors, and the number of tokens in a batch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._pooling import Pooling

_CPU_TOKENS_PER_THREAD = 512


def embed_batch(
    backbone: Backbone, pooling: Pooling, layer: int, batch: dict[str, Tensor]
) -> Tensor:
    """Compute the vectors (B, d) of a batch that is on the model's device.

    `layer` is the index of the hidden state that is pooled, -1 for the last. `batch` holds tokens
    and their attention mask, each of shape (B, T).
    """
    inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
    if pooling.is_head_input:
        return backbone.headless(**inputs).logits
    output = backbone.base(**inputs, output_hidden_states=layer != -1)
    hidden = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
    return pooling(hidden.float(), batch["attention_mask"])


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
            f"({type(error).__name__}: {error}); some architectures only accept certain "
            "lengths or need other inputs than text; they are not supported, so choose another one"
        ) from error


def vector_width(backbone: Backbone, pooling: Pooling) -> int:
    """Return the number of columns of the vectors."""
    if backbone.head is not None and pooling.is_head_input:
        return backbone.head.in_features
    return backbone.model.config.get_text_config().hidden_size * len(pooling.modes)


def token_budget(batch_tokens: int, device: torch.device) -> int:
    """Return the number of tokens in a batch, limited on a CPU to what suits its caches.

    The device is "meta" if ONNX Runtime runs the model, which it does on the CPU.
    """
    if device.type not in ("cpu", "meta"):
        return batch_tokens
    return min(batch_tokens, _CPU_TOKENS_PER_THREAD * torch.get_num_threads())
