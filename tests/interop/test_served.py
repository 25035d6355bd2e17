"""An export opens its encoder once and encodes its texts once, in full precision."""

import pytest
from sklearn.pipeline import make_pipeline

from isoadapt import TransformerEncoder, Whitening
from isoadapt.encoders._opened import Opened
from isoadapt.interop import (
    load_adapter,
    merge_into_checkpoint,
    save_adapter,
    to_sentence_transformer,
)
from isoadapt.interop._served import Served

EXPORTS = {
    "sentence": to_sentence_transformer,
    "merge": merge_into_checkpoint,
    "graph": lambda model, folder, out: Served.of(model).reference(),  # which it is made from
}


@pytest.fixture
def counted(monkeypatch):
    """The calls of methods that load a model and that encode texts, so far."""
    calls = []
    for cls, name in ((TransformerEncoder, "open"), (Opened, "encode")):
        plain = getattr(cls, name)

        def noted(self, *given, name=name, plain=plain):
            calls.append(name)
            return plain(self, *given)

        monkeypatch.setattr(cls, name, noted)
    return calls


@pytest.mark.parametrize("export", EXPORTS)
def test_of_a_pipeline(export, source, tmp_path, counted):
    model = make_pipeline(source.encoder, Whitening(shrinkage=0.1).fit(source.rows))
    EXPORTS[export](model, source.folder, tmp_path / "out")
    assert counted.count("encode") == 1
    assert counted.count("open") == (1 if export == "graph" else 2)  # the pipeline's, to compare


def test_of_a_saved_adapter(source, tmp_path, counted):
    adapter = Whitening(shrinkage=0.1).fit(source.rows)
    saved = save_adapter(adapter, tmp_path / "adapter", base_model=source.encoder)
    counted.clear()
    to_sentence_transformer(load_adapter(saved), source.folder, tmp_path / "out")
    assert counted == ["open", "encode"]
