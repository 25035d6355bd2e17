"""The form of an export: a folder for sentence-transformers, or a graph of other vectors."""

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
    pooling: str,
    onnx: bool,
    normalize: bool,
    overwrite: bool,
) -> tuple[Served, bool]:
    """Write adapters behind a checkpoint; return what was written, and whether as a graph.

    A graph is written if it is asked for, or if sentence-transformers cannot compute the vectors.
    """
    served = Served.of(adapter, model_folder, pooling)
    graph = onnx or not computes(served.opened)
    options = {"normalize": normalize, "overwrite": overwrite}
    if graph:
        write_graph(served, out_folder / "model.onnx", **options)
    else:
        write_sentence_folder(served, out_folder, **options)
    return served, graph
