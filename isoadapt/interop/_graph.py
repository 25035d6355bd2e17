"""Export of a loaded encoder, and of what follows it, as one ONNX graph."""

import copy
import logging
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from isoadapt.encoders._backbone import Backbone, live_backbone
from isoadapt.encoders._batching import embed_batch, to_device
from isoadapt.encoders._models import quiet
from isoadapt.encoders._opened import Opened


class _Network(nn.Module):
    """The part of a model that a graph computes, with inputs in the order of `names`."""

    def __init__(
        self, opened: Opened, backbone: Backbone, names: Iterable[str], after: nn.Module
    ) -> None:
        super().__init__()
        self.after = after
        headless = opened.pooling.begins_with_head_input
        self.network = backbone.headless if headless else backbone.base
        self.embed = partial(embed_batch, backbone, opened.pooling)
        self.steps = nn.ModuleList(opened.pooling.steps)
        self.names = tuple(names)

    def forward(self, *inputs: Tensor) -> Any:
        return self.after(self.embed(dict(zip(self.names, inputs, strict=True))))


def _eager(backbone: Backbone) -> Backbone:
    """Copy a model with eager attention, which gives a faster graph; weights are shared."""
    own = live_backbone(backbone.model, backbone.tokenizer)
    copies: dict[int, Any] = {}
    for module in own.model.modules():
        if "config" in vars(module):  # the original keeps its implementation of attention
            module.config = copy.deepcopy(module.config, copies)
    own.model.set_attn_implementation("eager")
    return own


def export_graph(
    opened: Opened, batch: dict[str, Tensor], after: nn.Module, outputs: Sequence[str]
) -> bytes:
    """Export a graph for batches of any shape like `batch`; `after` maps vectors to outputs."""
    shape = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    model = opened.backbone.model
    try:
        with quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names absent packages
            network = _Network(opened, _eager(opened.backbone), batch, after).eval()
            program = torch.onnx.export(
                network.to(model.device),
                tuple(to_device(batch, model.device).values()),
                dynamo=True,
                dynamic_shapes=((shape,) * len(batch),),
                input_names=list(batch),
                output_names=list(outputs),
                verbose=False,
            )
        return cast(Any, program).model_proto.SerializeToString()
    except Exception as error:  # the model's code, torch and protobuf may raise any exception
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
        raise ValueError(
            f"{type(model).__name__} cannot be exported to ONNX ({reason}); serve it with "
            "isoadapt.AdaptedEncoder"
        ) from error
