"""Export of adapters: folders to share without pickle, and merging into checkpoints."""

from isoadapt.interop._adapter import SOURCE as SOURCE
from isoadapt.interop._folder import (
    ADAPTER as ADAPTER,
    AdapterFolderError,
    load_adapter,
    provenance as provenance,
    read_config as read_config,
    save_adapter,
)
from isoadapt.interop._merge import merge_into_checkpoint
from isoadapt.interop._pipeline import take_apart as take_apart
from isoadapt.interop._sentence_transformer import (
    export_encoder as export_encoder,
    to_sentence_transformer,
)

__all__ = [
    "AdapterFolderError",
    "load_adapter",
    "merge_into_checkpoint",
    "save_adapter",
    "to_sentence_transformer",
]
