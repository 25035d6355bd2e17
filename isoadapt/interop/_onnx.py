"""Export of an encoder, its adapter and its head as one ONNX graph."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isoadapt._utils.files import atomic_folder, check_output_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.state import own_state
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats
from isoadapt.encoders._models import quiet
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._texts import Texts
from isoadapt.heads import LinearHead
from isoadapt.interop._card import onnx_card
from isoadapt.interop._graph import export_graph
from isoadapt.interop._loaders import LOGITS, VECTORS, check_written
from isoadapt.interop._served import Served, as_linear
from isoadapt.interop._written import write_json

_GRAPH = "an ONNX model"  # kind of the folder's content


@own_state(models=True)
def export_onnx(
    model: Any, file: str | os.PathLike[str], *, normalize: bool = False, overwrite: bool = False
) -> Path:
    """Write an encoder, its affine adapter and its head as one ONNX graph.

    The inputs of the graph are token ids and the other inputs of the model, such as the attention
    mask. Its outputs are ``sentence_vector`` of shape (batch, n_features_out), the adapted vectors,
    and ``logits`` of shape (batch, n_outputs), if there is a head. Batch and length are dynamic.
    The folder also holds ``tokenizer.json``, which truncates and pads, ``config.json`` with the
    labels in ``id2label``, and a ``README.md`` that shows how to serve them with onnxruntime and
    tokenizers alone. The graph is loaded and compared with the model before the folder appears.
    With the texts and outputs in ``reference.json``, ``isoadapt check`` repeats this where the
    folder is deployed.

    Parameters
    ----------
    model : AdaptedEncoder or Pipeline
        A fitted :class:`~isoadapt.AdaptedEncoder`, or a pipeline of a
        :class:`~isoadapt.TransformerEncoder` and affine adapters, such as
        :class:`~isoadapt.TeacherReadout` with all its layers. It may end with a linear model.
    file : str or path-like
        The graph to write, such as ``"served/model.onnx"``, which is returned. Its folder is new,
        and appears only when it is complete.
    normalize : bool, default=False
        Whether to scale the vectors to unit length.
    overwrite : bool, default=False
        Whether to replace a folder that this function wrote.

    Raises
    ------
    ImportError
        If onnx, onnxscript or onnxruntime is not installed.
    FileExistsError
        If the folder holds files and `overwrite` is false, or files that may not be replaced.
    TypeError
        If a step of the pipeline is not an adapter.
    ValueError
        If `model` does not begin with an encoder, an adapter is not affine or was fitted to vectors
        of another encoder, the architecture cannot be exported, or the graph gives another
        prediction or nearest neighbour for a checked text, or a cosine or relative logit that
        differs by more than 0.01.

    Warns
    -----
    UserWarning
        If vectors or logits differ by more than the rounding of float32, which the adapter
        amplifies; the card holds the figures.

    See Also
    --------
    to_sentence_transformer : Write a folder for transformers and sentence-transformers.

    Notes
    -----
    The logits come from the adapter's head or, without one, from the checkpoint's classifier if the
    encoder computes its input. They are in the order of ``id2label``. The graph computes in
    float32.

    Examples
    --------
    >>> from isoadapt.interop import export_onnx
    >>> export_onnx(model, "served/model.onnx")  # doctest: +SKIP
    """
    return write_graph(Served.of(model), file, normalize=normalize, overwrite=overwrite)


def write_graph(
    served: Served, file: str | os.PathLike[str], *, normalize: bool, overwrite: bool
) -> Path:
    """Write a graph and, beside it, what a server needs."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_optional(package, feature="export_onnx", extra="onnx")
    opened, vectors, target = served.opened, served.map_, Path(file).expanduser()
    if target.suffix != ".onnx":
        raise ValueError(f"file={str(file)!r} must end in .onnx, such as 'served/model.onnx'")
    check_output_folder(target.parent, overwrite, content=_GRAPH, name="the folder of file")
    if opened.backbone.model.dtype != torch.float32:
        raise ValueError(
            f"the live model is in {opened.backbone.model.dtype}, but a graph is in float32: pass "
            "(model.float(), tokenizer)"
        )
    source, pads = served.reference(), not opened.equal_lengths
    logits, config = _logits(served)
    reference = source.adapted(vectors, normalize)._replace(
        logits=logits and logits(source.vectors), loaders=[target.name], padded=pads
    )
    example = opened.tokens(Texts(source.texts[:3])).batch(0, 3)
    names = [VECTORS] + ([LOGITS] if logits else [])
    readout = _Readout(vectors, logits, source.vectors.mean(axis=0), normalize)
    graph = export_graph(opened, example, readout, names)
    with quiet(), atomic_folder(target.parent, overwrite, _GRAPH) as written:
        (written / target.name).write_bytes(graph)
        write_json(written / "config.json", config.to_dict())
        _write_tokenizer(written, opened, pads)
        check = check_written(written, reference)
        facts = [f"Batches: {'padded' if pads else 'of equal lengths, as padding changes vectors'}"]
        if source.stand_in:
            facts.append(f"Empty texts, which have no tokens: write `{source.stand_in}` instead")
        if opened.backbone.end_token is not None:
            facts.append("Texts of a batch: with the same number of end tokens, for most just one")
        if logits:
            facts.append("Labels: by id2label and problem_type in config.json")
        shown = ", ".join(names) + (", the former of length 1" if normalize else "")
        card = onnx_card(served, target.name, reference, check, shown, facts)
        (written / "README.md").write_text(card, "utf-8")
    return target


def _logits(served: Served) -> tuple[Affine | None, Any]:
    """Return the map from the encoder's vectors to logits, and the configuration to write."""
    opened, head = served.opened, served.parts.last_head()
    config = copy.deepcopy(opened.backbone.model.config)
    if head is not None:
        return _outputs(head, served, config).after(served.parts.read_by_head()), config
    if opened.backbone.head is None or not opened.pooling.begins_with_head_input:
        return None, config
    _outputs(served.head, served, config)
    return served.own_logits(opened.width), config


def _outputs(head: LinearHead, served: Served, config: Any) -> Affine:
    """Return a head's outputs in the order of the labels of `config`, which gets other ones."""
    kind = "multi_label" if head.multi_label_ else "single_label"
    config.problem_type = "regression" if head.classes_ is None else f"{kind}_classification"
    try:
        if served.opened.backbone.head is not None:
            return served.outputs(head)
    except ValueError:  # the head was fitted to other labels than the checkpoint's
        pass
    labels = range(len(head.coef_)) if head.classes_ is None else head.classes_.tolist()
    config.id2label = {number: str(label) for number, label in enumerate(labels)}
    config.label2id = {label: number for number, label in config.id2label.items()}
    return Affine(head.coef_, head.intercept_)


class _Readout(nn.Module):
    """The outputs, computed from vectors (B, width)."""

    centre: Tensor

    def __init__(
        self, vectors: Affine, logits: Affine | None, centre: Floats, normalize: bool
    ) -> None:
        super().__init__()
        # Around a centre, because float32 rounds the vectors of a narrow cone too coarsely.
        centre = centre.astype(np.float32).astype(np.float64)
        offset = vectors(centre[None])[0]
        self.normalize, self.adapter = normalize, as_linear(Affine(vectors.matrix, offset))
        self.register_buffer("centre", torch.tensor(centre, dtype=torch.float32))
        self.head = None if logits is None else as_linear(logits)

    def forward(self, vectors: Tensor) -> tuple[Tensor, ...]:
        adapted = self.adapter(vectors - self.centre)
        if self.normalize:
            adapted = nn.functional.normalize(adapted, dim=1)
        return (adapted,) if self.head is None else (adapted, self.head(vectors))


def _write_tokenizer(folder: Path, opened: Opened, pads: bool) -> None:
    """Write the tokenizer; its ``tokenizer.json`` truncates and pads as the encoder does."""
    from tokenizers import Tokenizer

    backbone, length = opened.backbone, opened.length()
    tokenizer = backbone.tokenizer
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer {type(tokenizer).__name__} has no tokenizer.json, which a server needs:"
            " save the checkpoint with its fast tokenizer"
        )
    tokenizer.save_pretrained(folder)
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_truncation()
    own.no_padding()
    if length is not None:
        own.enable_truncation(length, direction=tokenizer.truncation_side)
    if pads:
        side = "right" if backbone.limit is not None else tokenizer.padding_side
        number, kind = tokenizer.pad_token_id, tokenizer.pad_token_type_id
        own.enable_padding(
            direction=side, pad_id=number, pad_type_id=kind, pad_token=str(tokenizer.pad_token)
        )
    own.save(str(folder / "tokenizer.json"))
