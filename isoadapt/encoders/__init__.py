"""Text encoders: frozen transformers as scikit-learn transformers, with their embedding cache."""

from isoadapt.encoders._backbone import Backbone as Backbone
from isoadapt.encoders._cache._embedding_cache import EmbeddingCache
from isoadapt.encoders._checkpoint import (
    encoder_head as encoder_head,
    load_checkpoint,
    read_head as read_head,
)
from isoadapt.encoders._folder import (
    read_object as read_object,
    transformer_folder as transformer_folder,
    weight_files as weight_files,
)
from isoadapt.encoders._head_path import HeadPath as HeadPath, head_path as head_path
from isoadapt.encoders._layer_report import LayerReport
from isoadapt.encoders._layers import layer_report
from isoadapt.encoders._models import (
    check_files as check_files,
    checkpoint_folder as checkpoint_folder,
    names_classifier as names_classifier,
    quiet as quiet,
    release,
    tokenizer_folder as tokenizer_folder,
)
from isoadapt.encoders._network import (
    eval_copy as eval_copy,
    find_last_linear as find_last_linear,
    is_classifier as is_classifier,
    position_limit as position_limit,
)
from isoadapt.encoders._peft import CONFIG as CONFIG
from isoadapt.encoders._pooling import MODE_OF_KEY as MODE_OF_KEY, Pooling as Pooling
from isoadapt.encoders._texts import Texts as Texts, as_texts as as_texts
from isoadapt.encoders._tokenization import encoded_parts as encoded_parts
from isoadapt.encoders._transformer import TransformerEncoder
from isoadapt.encoders._truncation import measure_truncation as measure_truncation
from isoadapt.encoders._vectors import (
    HEAD_VECTORS as HEAD_VECTORS,
    VectorSource as VectorSource,
    describe_vectors as describe_vectors,
    vector_source as vector_source,
)

__all__ = [
    "EmbeddingCache",
    "LayerReport",
    "TransformerEncoder",
    "layer_report",
    "load_checkpoint",
    "release",
]
