"""Detection of models whose vectors change with padding, by a probe with two short texts."""

import torch
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import model_inputs, to_device
from isoadapt.encoders._forward import explained_failure
from isoadapt.encoders._locks import PROBES_LOCK
from isoadapt.encoders._pooling import Pooling
from isoadapt.encoders._texts import Texts

# In a batch of both, the first text is padded, also with a tokenizer of characters.
_PROBE = Texts(["It was far.", "It was far, and then the road ran on under the trees by a river."])
# Mean absolute differences, relative to the mean absolute value. In models of 6 to 24 layers,
# rounding alone causes 1e-6 to 3e-6 in float32 and 1.5 to 3.5 machine epsilons in half precision.
_TOLERANCE = 1e-5
_EPSILONS = 4


def needs_equal_lengths(backbone: Backbone, pooling: Pooling) -> bool:
    """Return whether batches must hold rows of one length, because padding would change vectors.

    The first call for a model runs the probe, which costs two forward passes of short texts.
    """
    head = pooling.is_head_input
    own, tokenizers = backbone.model.config.pad_token_id, backbone.tokenizer.pad_token_id
    if backbone.switches_attention:
        return True
    if (head and own is None) or (own is not None and own != tokenizers):
        return True  # the model would treat padding as text, or text as padding
    with PROBES_LOCK:
        key = (head, tokenizers, backbone.tokenizer.padding_side)
        if key not in backbone.probes:
            backbone.probes[key] = _padding_changes_vectors(backbone, head)
        return backbone.probes[key]


@torch.inference_mode()
def _padding_changes_vectors(backbone: Backbone, head: bool) -> bool:
    """Return whether the vectors of a text differ between batches with and without padding."""
    tokens = model_inputs(backbone, _PROBE, backbone.default_length)
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
    inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
    with explained_failure(backbone, batch):
        if head:
            return backbone.headless(**inputs).logits[-1:].float()
        hidden = backbone.base(**inputs).last_hidden_state
        width = backbone.model.config.get_text_config().hidden_size
        if hidden.shape[-1] != width:
            raise ValueError(f"its hidden states have {hidden.shape[-1]} columns, not {width}")
        return hidden[batch["attention_mask"].bool()].float()
