"""Whatever happens to an adapter folder, it loads as it was or is refused by one kind of error."""

import io
import random
import zipfile
from functools import partial

import numpy as np
import pytest
import skops.io

from isoadapt import LinearHead, TransformerEncoder, Whitening
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import map_rows
from isoadapt.interop import AdapterFolderError, load_adapter, save_adapter
from tests.interop.examples import X, fitted, same

FILE = "adapter.skops"
SOURCES = [("Whitening", "pca"), ("IsotropyLayer", "joint"), ("FlowAdapter", "unsupervised")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Adapters with the bytes of their files."""
    found = []
    for name, variant in SOURCES:
        adapter = fitted(name, variant)
        folder = save_adapter(adapter, tmp_path_factory.mktemp("source") / "a", base_model="base")
        found.append((adapter, (folder / FILE).read_bytes()))
    return found


def load(folder, data):
    """The adapter of a folder with this file, or None where it is refused."""
    folder.mkdir()
    (folder / FILE).write_bytes(data)
    try:
        return load_adapter(folder)
    except AdapterFolderError as error:
        message = str(error)
    assert str(folder) in message
    assert "\n" not in message
    return None


def damaged(data, rng):
    """Bits flipped, the end or some bytes cut off, or bytes put in."""
    start, n = rng.randrange(len(data)), rng.randint(1, 9)
    flipped = bytes([data[start] ^ 1 << rng.randrange(8)])
    ways = [flipped + data[start + 1 :], b"", data[start + n :], rng.randbytes(n) + data[start:]]
    return data[:start] + rng.choice(ways)


def test_damaged_bytes(sources, tmp_path):
    rng = random.Random(0)
    refused = 0
    for i in range(120):
        adapter, data = sources[i % len(SOURCES)]
        loaded = load(tmp_path / str(i), damaged(data, rng))
        refused += loaded is None
        assert loaded is None or same(vars(loaded), vars(adapter))
    assert refused > 90


def content(*steps, base_model="base"):
    return skops.io.dumps({"steps": list(steps), "base_model": base_model})


def changed(**attributes):
    """A fitted adapter with other attributes."""
    adapter = Whitening("pca", n_components=2).fit(X)
    vars(adapter).update(attributes)
    return content(("adapter", adapter))


MAP = Affine(np.zeros((2, 5)), np.zeros(2))
HEAD = LinearHead(np.ones((3, 5)), np.zeros(3))
PARAMETERS = {"pooling": "auto", "layer": -1, "max_length": 9, "dtype": "auto", "revision": None}
ENCODER = {"model": "a", **PARAMETERS}
ADAPTER = ("adapter", Whitening().fit(X))
WRONG = {
    "no steps": content(),
    "another content": skops.io.dumps([1, 2]),
    "swapped arrays": changed(map_=Affine(MAP.offset, MAP.matrix)),
    "too narrow": changed(map_=Affine(np.zeros((2, 4)), np.zeros(2))),
    "NaN in the map": changed(map_=Affine(np.full((2, 5), np.nan), np.zeros(2))),
    "a map that is none": changed(map_=np.dot),
    "no head": changed(head_="logistic"),
    "head of another width": changed(head_=HEAD),
    "bad parameter": changed(shrinkage=2.0),
    "wrong width": changed(n_features_in_=4),
    "not fitted": content(("adapter", Whitening())),
    "steps of other widths": content(
        ADAPTER, ("b", Whitening("pca", n_components=2).fit(X[:, :4]))
    ),
    "no name": content(ADAPTER, base_model=3),
    "code is trusted": content(("encoder", ENCODER | {"trust_remote_code": True}), ADAPTER),
    "a cache": content(("encoder", ENCODER | {"cache": "here"}), ADAPTER),
    "a model that is no name": content(("encoder", ENCODER | {"model": 3}), ADAPTER),
    "a pooling that is none": content(("encoder", ENCODER | {"pooling": "sum"}), ADAPTER),
}


def test_what_is_not_an_adapter_is_refused(tmp_path):
    assert load(tmp_path / "intact", changed()) is not None
    assert len(load(tmp_path / "with encoder", content(("encoder", ENCODER), ADAPTER))) == 2
    for name, data in WRONG.items():
        assert load(tmp_path / name, data) is None, name


def renamed(data, **names):
    """The content of a file whose class Affine has another name or module."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        files = {name: old.read(name) for name in old.namelist()}
    schema = files["schema.json"].decode()
    for before, after in names.items():
        schema = schema.replace(f'"{before}"', f'"{after}"')
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for name, each in files.items():
            new.writestr(name, schema if name == "schema.json" else each)
    return buffer.getvalue()


CODE = partial(print, "run")
FOREIGN = {
    "builtins.exec": changed(scoring=exec),
    "io.open": changed(map_=open),
    "functools.partial": changed(scoring=CODE),
    "tests.interop.test_damaged.load": changed(scoring=load),
    "isoadapt.interop._folder.save_adapter": changed(scoring=save_adapter),
    "isoadapt.adapters._maps.map_rows": changed(scoring=map_rows),  # a function
    "isoadapt.adapters._maps.Affine.inverted": changed(scoring=MAP.inverted),  # a method
    "isoadapt.adapters._maps.Protocol": renamed(changed(), Affine="Protocol"),  # of typing
    "isoadapt.encoders._transformer.TransformerEncoder": content(
        ("encoder", TransformerEncoder("a", trust_remote_code=True)), ADAPTER
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_types_are_refused_by_name(name, tmp_path):
    (tmp_path / FILE).write_bytes(FOREIGN[name])
    with pytest.raises(AdapterFolderError, match=name.replace(".", r"\.")):
        load_adapter(tmp_path)


def test_a_link_is_no_file(sources, tmp_path):
    (tmp_path / "real").write_bytes(sources[0][1])
    (tmp_path / FILE).symlink_to(tmp_path / "real")
    with pytest.raises(AdapterFolderError, match=FILE):
        load_adapter(tmp_path)


def test_odd_json(tmp_path):
    texts = ["[" * 10**5, '{"a":' * 10**5, "1" * 10**5, "null", "NaN", "", '"\\ud800"', "\xff"]
    for number, text in enumerate(texts):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as file:
            file.writestr("schema.json", text.encode("latin-1"))
        data = (tmp_path / f"{number}.zip").read_bytes()
        assert load(tmp_path / str(number), data) is None, text[:9]
