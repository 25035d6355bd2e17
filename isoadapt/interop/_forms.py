"""The form of an export: a folder without code if one can compute the vectors, else a graph."""

from pathlib import Path
from typing import Any

from isoadapt._utils.state import own_state
from isoadapt.interop._onnx import write_graph
from isoadapt.interop._sentence_transformer import computes, write_sentence_folder
from isoadapt.interop._served import Served


@own_state(models=True)
def export(
    adapter: Any,
    model_folder: Path,
    out_folder: Path,
    *,
    pooling: str = "auto",
    onnx: bool = False,
    normalize: bool = False,
    overwrite: bool = False,
) -> tuple[Served, bool]:
    """Write adapters behind a checkpoint; return what was written, and whether it is a graph.

    It is the folder of sentence-transformers unless `onnx` asks for a graph, or the vectors do.
    """
    served = Served.of(adapter, model_folder, pooling)
    graph = onnx or not computes(served.opened)
    if graph:
        file = out_folder / "model.onnx"
        write_graph(served, file, normalize=normalize, overwrite=overwrite)
    else:
        write_sentence_folder(served, out_folder, normalize=normalize, overwrite=overwrite)
    return served, graph
