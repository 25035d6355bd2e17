"""Encoders run by ONNX Runtime: graphs are exported once, compared with torch, and kept on disk."""

import copy
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor, nn

from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import warn
from isoadapt.encoders._backbone import Backbone, live_backbone
from isoadapt.encoders._batching import embed_batch, embed_batches, needs_equal_lengths, to_device
from isoadapt.encoders._cache import EmbeddingCache, as_cache
from isoadapt.encoders._identity import checkpoint_identity
from isoadapt.encoders._models import quiet, stored_graph
from isoadapt.encoders._pooling import Pooling
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import model_inputs

_VERSION = 2  # version of the export; graphs of another version are exported again
_GRAPH, _REPORT = "model.onnx", "export.json"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_FLOAT32_TOLERANCE = 1e-3
_LOWEST_MEAN, _LOWEST_COSINE = 0.99, 0.95  # cosines below which a warning is given
_BATCH_TOKENS = 512
_SENTENCES = [
    "The committee that she chairs meets again on Thursday.",
    "Nobody knew why the old bridge had been closed.",
    "A dog barked.",
    "In 1984 the river rose by more than 3.5 metres, and the lower town was flooded for weeks.",
    "Which of these books did you say you have read?",
    "The film is a slow, tender and often very funny portrait of two sisters.",
    "Prices fell for the third month in a row, although wages hardly moved.",
    "Him seems the answer to have known.",
]
_SAMPLE = Texts([" ".join((_SENTENCES * 2)[i : i + n]) for n in (1, 2, 6) for i in range(8)])

Embed = Callable[[dict[str, Tensor]], Tensor]


class Deviation(NamedTuple):
    """Deviation of vectors from exact vectors."""

    mean_cosine: float  # between the two vectors of a text
    min_cosine: float
    max_difference: float  # largest norm of the difference, relative to that of the exact vector
    n_texts: int


def compare_vectors(found: NDArray[Any], exact: NDArray[Any]) -> Deviation:
    """Compare vectors (n, d) with exact vectors of the same texts, row by row."""
    found, exact = found.astype(np.float64), exact.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    cosines = (found * exact).sum(axis=1) / (np.linalg.norm(found, axis=1) * norms)
    difference = (np.linalg.norm(found - exact, axis=1) / norms).max()
    return Deviation(float(cosines.mean()), float(cosines.min()), float(difference), len(cosines))


@dataclass(frozen=True)
class GraphSpec:
    """Specification of a graph: what it pools, in float32 or in int8."""

    pooling: Pooling
    layer: int
    int8: bool


class OnnxModel:
    """A graph that maps a padded batch on the CPU to vectors (B, d).

    The graph is passed as bytes, because a graph in memory cannot refer to other files.
    """

    def __init__(self, graph: bytes, equal_lengths: bool) -> None:
        import onnxruntime

        self.equal_lengths = equal_lengths

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.enable_mem_pattern = False  # it would store a plan for every shape of batch
        self._session = onnxruntime.InferenceSession(
            graph,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # slower than the separate operations
        )
        self._names = [given.name for given in self._session.get_inputs()]

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        inputs = {name: batch[name].numpy() for name in self._names}
        return torch.from_numpy(self._session.run(None, inputs)[0])


_Checked = tuple[OnnxModel, Deviation]


def graphs_folder(cache: str | os.PathLike[str] | EmbeddingCache | None) -> Path:
    """Return the folder ``onnx`` of exported graphs, in that of the cache or in the user's."""
    if cache is not None:
        return Path(as_cache(cache).folder).expanduser().absolute() / "onnx"
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(users) / "isoadapt" / "onnx"


def onnx_model(
    spec: GraphSpec, *, outline: Backbone, load: Callable[[], Backbone], root: Path
) -> OnnxModel:
    """Return the graph of a checkpoint, shared by the whole process, exporting it if necessary.

    `outline` is the checkpoint, possibly without weights; `load` loads it in float32 on the CPU;
    `root` is the folder of exported graphs. A missing package raises ImportError. If `root` cannot
    be written to or the checkpoint changes meanwhile, OSError is raised. A failed export raises
    ValueError.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import of onnxruntime
    import_optional("onnxruntime", feature="backend='onnx'", extra="onnx")
    folder, kind = cast(Path, outline.folder), type(outline.model)
    identity = checkpoint_identity(folder)
    settings = (_VERSION, spec, kind.__module__, kind.__qualname__)
    target = root / identity.with_settings(*settings).digest.hex()[:40]

    def export() -> _Checked:
        """Export the graph to its folder."""
        for package in PACKAGES:
            import_optional(package, feature="backend='onnx'", extra="onnx")
        made, files = _export(spec, load())
        if checkpoint_identity(folder) != identity:
            raise OSError(f"model={str(folder)!r} changed while it was exported; try again")
        target.mkdir(exist_ok=True)
        for name, content in files.items():
            with atomic_path(target / name) as written:
                written.write_bytes(content)
        return made

    def ready() -> OnnxModel:
        """Read or export the graph, and warn if its int8 vectors are inexact."""
        model, deviation = _read(target) or _export_once(target, export)
        if deviation.mean_cosine < _LOWEST_MEAN or deviation.min_cosine < _LOWEST_COSINE:
            warn(
                f"int8 vectors of model={str(folder)!r} have a mean cosine of "
                f"{deviation.mean_cosine:.3f} (lowest {deviation.min_cosine:.3f}) to those in "
                f"float32, on {deviation.n_texts} built-in texts; measure your own texts with "
                "encoder.deviation(texts), or choose dtype='float32'"
            )
        return model

    return stored_graph((target, torch.get_num_threads()), ready)


def _read(target: Path) -> _Checked | None:
    """Read an exported graph; return None if it does not exist or is damaged."""
    try:
        report = json.loads((target / _REPORT).read_text("utf-8"))
        graph = (target / _GRAPH).read_bytes()
        if hashlib.sha256(graph).hexdigest() != report["sha256"]:
            return None
        model = OnnxModel(graph, bool(report["equal_lengths"]))
        return model, Deviation(**report["deviation"])
    except Exception:  # the exceptions of ONNX Runtime have no other common base class
        return None


def _export_once(target: Path, export: Callable[[], _Checked]) -> _Checked:
    """Export a graph; if another process is exporting it, wait for that process."""
    try:
        writable_folder(target.parent)
    except OSError as error:
        raise OSError(
            f"backend='onnx' keeps exported models in {str(target.parent)!r}, which cannot be "
            "written to; pass cache=folder to keep them in another folder"
        ) from error
    with FileLock(target.with_suffix(".lock")):
        made = _read(target)
        if made is None and (target / _REPORT).exists():
            warn(f"{target} is damaged and is exported again")
        return made or export()


def _export(spec: GraphSpec, backbone: Backbone) -> tuple[_Checked, dict[str, bytes]]:
    """Return a graph with its deviation, and the files to write, the report last."""
    tokens = model_inputs(backbone, _SAMPLE, backbone.default_length)
    equal_lengths = needs_equal_lengths(backbone, spec.pooling)

    def vectors(embed: Embed) -> NDArray[np.float32]:
        """Compute the vectors (n, d) of the sample."""
        batches = embed_batches(
            [tokens], embed, batch_tokens=_BATCH_TOKENS, equal_lengths=equal_lengths
        )
        return torch.cat([batch for _, batch in batches]).numpy()

    with torch.inference_mode():
        exact = vectors(partial(embed_batch, backbone, spec.pooling, spec.layer))

    def measured(graph: bytes) -> tuple[Deviation, OnnxModel, bytes]:
        """Measure the deviation of a graph from the exact vectors."""
        model = OnnxModel(graph, equal_lengths)
        return compare_vectors(vectors(model), exact), model, graph

    deviation, model, graph = measured(export_graph(backbone, spec, tokens.batch(0, 3)))
    if not deviation.max_difference <= _FLOAT32_TOLERANCE:
        reason = f"its vectors would differ by {deviation.max_difference:.2g}"
        raise _not_exportable(backbone, reason)
    if spec.int8:  # the reduced range is more exact on a CPU whose int8 products overflow
        graphs = (_quantized(graph, reduce_range) for reduce_range in (False, True))
        deviation, model, graph = max(map(measured, graphs), key=lambda found: found[0])
    report = {
        "sha256": hashlib.sha256(graph).hexdigest(),
        "deviation": deviation._asdict(),
        "equal_lengths": equal_lengths,
        "versions": {name: version(name) for name in ("torch", "transformers", *PACKAGES)},
    }
    text = json.dumps(report, indent=1) + "\n"
    return (model, deviation), {_GRAPH: graph, _REPORT: text.encode()}


class _Network(nn.Module):
    """The part of a model that a graph computes, with inputs in the order of `names`."""

    def __init__(
        self, backbone: Backbone, spec: GraphSpec, names: Iterable[str], after: nn.Module
    ) -> None:
        super().__init__()
        self.after = after
        headless = spec.pooling.begins_with_head_input
        self.network = backbone.headless if headless else backbone.base
        self.embed: Embed = partial(embed_batch, backbone, spec.pooling, spec.layer)
        self.steps = nn.ModuleList(spec.pooling.steps)
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
    backbone: Backbone,
    spec: GraphSpec,
    batch: dict[str, Tensor],
    after: nn.Module | None = None,
    outputs: Sequence[str] = ("vectors",),
) -> bytes:
    """Export a graph for batches of any shape; `batch` is an example.

    `after` computes the outputs from the vectors.
    """
    shape = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    device = backbone.model.device
    try:
        with quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Network(_eager(backbone), spec, batch, after or nn.Identity()).eval().to(device),
                tuple(to_device(batch, device).values()),
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
        raise _not_exportable(backbone, reason) from error


def _quantized(graph: bytes, reduce_range: bool) -> bytes:
    """Quantise a graph: int8 weights scaled by column, inputs scaled by batch."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_model_from_string(graph)
    # The property avoids a log message.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with TemporaryDirectory() as folder:
        target = Path(folder) / _GRAPH
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
        )
        return target.read_bytes()


def _not_exportable(backbone: Backbone, reason: str) -> ValueError:
    """Return the error for a model that cannot be exported."""
    return ValueError(
        f"{type(backbone.model).__name__} cannot be exported to ONNX ({reason}); choose "
        "backend='torch'"
    )
