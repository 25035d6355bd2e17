"""Adapters outside of Python's pickles: folders to share, and plain checkpoints to serve."""

from isoadapt.interop._folder import AdapterFolderError, load_adapter, save_adapter
from isoadapt.interop._merge import merge_into_checkpoint

__all__ = ["AdapterFolderError", "load_adapter", "merge_into_checkpoint", "save_adapter"]
