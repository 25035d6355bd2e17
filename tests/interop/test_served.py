"""An export opens its encoder once and encodes its texts once, in full precision."""

import pytest
from sklearn.pipeline import make_pipeline

from isoadapt import TransformerEncoder, Whitening, interop
from isoadapt.encoders._opened import Opened
from isoadapt.interop._served import Served

EXPORTS = {
    "sentence": interop.to_sentence_transformer,
    "merge": interop.merge_into_checkpoint,
    "graph": lambda model, folder, out: Served.of(model).reference(),  # which it is made from
}


@pytest.mark.parametrize("export", EXPORTS)
def test_of_a_pipeline(export, source, tmp_path, spy):
    model = make_pipeline(source.encoder, Whitening(shrinkage=0.1).fit(source.rows))
    opened, encoded = spy(TransformerEncoder, "open"), spy(Opened, "encode")
    EXPORTS[export](model, source.folder, tmp_path / "out")
    assert len(encoded) == 1
    assert len(opened) == (1 if export == "graph" else 2)  # the pipeline's, to compare


def test_of_a_saved_adapter(source, tmp_path, spy):
    adapter = Whitening(shrinkage=0.1).fit(source.rows)
    saved = interop.save_adapter(adapter, tmp_path / "adapter", base_model=source.encoder)
    opened, encoded = spy(TransformerEncoder, "open"), spy(Opened, "encode")
    interop.to_sentence_transformer(interop.load_adapter(saved), source.folder, tmp_path / "out")
    assert len(opened) == len(encoded) == 1
