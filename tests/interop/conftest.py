"""One export of each kind, which many tests ask."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from isoadapt import LogitPreservingWhitening, TransformerEncoder, Whitening, load_checkpoint
from isoadapt.interop import merge_into_checkpoint, save_adapter, to_sentence_transformer
from tests.cli.command_line import succeed
from tests.interop.examples import blurred

LENGTH = 9  # tokens; some texts are longer


class Source(NamedTuple):
    """A checkpoint with its encoder and head, embeddings to fit to, and a preserving whitening."""

    folder: Any
    encoder: TransformerEncoder
    head: Any
    rows: np.ndarray
    adapter: LogitPreservingWhitening


@pytest.fixture(scope="session")
def source(shallow):
    """The tiny BERT classifier of one layer and what is fitted to it; do not change it."""
    encoder, head = load_checkpoint(shallow, max_length=LENGTH)
    rows = blurred(encoder)
    return Source(shallow, encoder, head, rows, LogitPreservingWhitening(head).fit(rows))


@pytest.fixture(scope="session")
def sentence(source, tmp_path_factory):
    """The source as a folder for sentence-transformers; do not write to it."""
    pytest.importorskip("sentence_transformers")
    out = tmp_path_factory.mktemp("sentence") / "served"
    model = make_pipeline(source.encoder, source.adapter)
    return to_sentence_transformer(model, source.folder, out)


@pytest.fixture(scope="session")
def merged(source, tmp_path_factory):
    """The source with a whitening merged, which its head reads; do not write to it."""
    out = tmp_path_factory.mktemp("merged") / "served"
    adapter = Whitening(shrinkage=0.1).fit(source.rows)
    return merge_into_checkpoint(adapter, source.folder, out)


@pytest.fixture(scope="session")
def onnx(source, tmp_path_factory):
    """The folder of the source's graph, which the command line wrote; do not write to it."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("onnx")
    saved = save_adapter(source.adapter, folder / "adapter", base_model=source.encoder)
    succeed("export", saved, "--model", source.folder, "--out", folder / "served", "--onnx")
    return folder / "served"
