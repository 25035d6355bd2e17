"""Whether padding changes a model's vectors, found by a probe of two short texts."""

import threading

import torch
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import to_device, tokenize
from isoadapt.encoders._forward import explained_failure
from isoadapt.encoders._pooling import HEAD_INPUT, Pooling
from isoadapt.encoders._texts import Texts

# The first text gets padding beside the second one, also from a tokenizer of characters.
_PROBE = Texts(["It was far.", "It was far, and then the road ran on under the trees by a river."])
# Mean absolute differences, as a share of the mean absolute value. Rounding alone gives 1e-6 to
# 3e-6 in float32 and 1.5 to 3.5 units of rounding in half precision, in models of 6 to 24 layers.
_TOLERANCE = 1e-5
_UNITS_OF_ROUNDING = 4
_LOCK = threading.Lock()


def needs_equal_lengths(backbone: Backbone, pooling: Pooling) -> bool:
    """Whether a batch must hold rows of one length only, because padding would change vectors.

    The first call for a model probes it, which costs two forward passes of short texts.
    """
    head = pooling.modes == (HEAD_INPUT,)
    own, tokenizers = backbone.model.config.pad_token_id, backbone.tokenizer.pad_token_id
    if backbone.switches_attention:
        return True
    if (head and own is None) or (own is not None and own != tokenizers):
        return True  # the model would take padding for text, or text for padding
    with _LOCK:
        key = (head, tokenizers, backbone.tokenizer.padding_side)
        if key not in backbone.probes:
            backbone.probes[key] = _padding_leaks(backbone, head)
        return backbone.probes[key]


@torch.inference_mode()
def _padding_leaks(backbone: Backbone, head: bool) -> bool:
    """Whether a text's vectors differ between a batch without padding and one with it."""
    tokens = tokenize(
        backbone.tokenizer,
        _PROBE,
        max_length=backbone.default_length,
        names=backbone.inputs,
        counts_positions=backbone.limit is not None,
    )
    if tokens.lengths[0] == tokens.lengths[1]:
        return True  # there is nothing to learn from a batch without padding
    alone = _states(backbone, head, tokens.batch(1, 2))
    try:
        padded = _states(backbone, head, tokens.batch(0, 2))[-len(alone) :]
    except ValueError:
        return True  # the model does not accept padding at all
    tolerance = max(_TOLERANCE, _UNITS_OF_ROUNDING * torch.finfo(backbone.model.dtype).eps)
    return not bool((padded - alone).abs().mean() <= tolerance * alone.abs().mean())


def _states(backbone: Backbone, head: bool, batch: dict[str, Tensor]) -> Tensor:
    """Give the head inputs of the last row (1, d), or the last hidden states of all rows (n, d)."""
    batch = to_device(batch, backbone.model.device)
    inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
    with explained_failure(backbone, batch):
        if head:
            return backbone.headless(**inputs).logits[-1:].float()
        hidden = backbone.base(**inputs).last_hidden_state
        width = backbone.model.config.get_text_config().hidden_size
        if hidden.shape[-1] != width:
            raise ValueError(f"its hidden states have {hidden.shape[-1]} columns, not {width}")
        return hidden[batch["attention_mask"].bool()].float()
