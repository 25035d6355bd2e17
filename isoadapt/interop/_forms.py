"""The form of an export: a folder for sentence-transformers, or a graph of other vectors."""

from pathlib import Path

from isoadapt._utils.state import own_state
from isoadapt.interop._onnx import write_graph
from isoadapt.interop._sentence_transformer import computes, write_sentence_folder
from isoadapt.interop._served import Served


@own_state(models=True)
def export(
    served: Served, out_folder: Path, *, onnx: bool, normalize: bool, overwrite: bool
) -> bool:
    """Write a folder or, where it is wanted or needed, a graph; return whether it is a graph."""
    graph = onnx or not computes(served.opened)
    options = {"normalize": normalize, "overwrite": overwrite}
    if graph:
        write_graph(served, out_folder / "model.onnx", **options)
    else:
        write_sentence_folder(served, out_folder, **options)
    return graph
