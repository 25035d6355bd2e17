"""Text encoders: frozen transformers as scikit-learn transformers, with their embedding cache."""

from isoadapt.encoders._cache import EmbeddingCache
from isoadapt.encoders._checkpoint import load_checkpoint
from isoadapt.encoders._layer_report import layer_report
from isoadapt.encoders._models import release
from isoadapt.encoders._transformer import TransformerEncoder

__all__ = [
    "EmbeddingCache",
    "TransformerEncoder",
    "layer_report",
    "load_checkpoint",
    "release",
]
