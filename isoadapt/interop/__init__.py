"""Export of adapters: folders to share without pickle, and merging into checkpoints."""

from isoadapt.interop._faiss import to_faiss
from isoadapt.interop._folder import AdapterFolderError, load_adapter, save_adapter
from isoadapt.interop._merge import merge_into_checkpoint
from isoadapt.interop._onnx import export_onnx
from isoadapt.interop._sentence_transformer import to_sentence_transformer

__all__ = [
    "AdapterFolderError",
    "export_onnx",
    "load_adapter",
    "merge_into_checkpoint",
    "save_adapter",
    "to_faiss",
    "to_sentence_transformer",
]
