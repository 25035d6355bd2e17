"""From text to matrices: frozen transformers as scikit-learn estimators."""

from isoadapt.encoders._checkpoint import load_checkpoint
from isoadapt.encoders._models import release
from isoadapt.encoders._transformer import TransformerEncoder

__all__ = ["TransformerEncoder", "load_checkpoint", "release"]
