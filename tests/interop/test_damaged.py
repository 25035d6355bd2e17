"""Whatever happens to an adapter folder, it loads as it was or is refused by one kind of error."""

import hashlib
import json
import random

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from isoadapt import Whitening
from isoadapt.interop import AdapterFolderError, load_adapter, save_adapter
from tests.interop.examples import X, checksum, fitted, same

CONFIG, TENSORS = "config.json", "adapter.safetensors"
SOURCES = [("Whitening", "pca"), ("IsotropyLayer", "joint"), ("FlowAdapter", "unsupervised")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Adapters with the bytes of their folders."""
    found = []
    for name, variant in SOURCES:
        adapter = fitted(name, variant)
        folder = save_adapter(adapter, tmp_path_factory.mktemp("source") / "a", base_model="base")
        files = {file: (folder / file).read_bytes() for file in (CONFIG, TENSORS)}
        found.append((adapter, files, load_file(folder / TENSORS)))
    return found


def write(folder, files):
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def load(folder):
    """The adapter, or None where it is refused."""
    try:
        return load_adapter(folder)
    except AdapterFolderError as error:
        message = str(error)
    assert str(folder) in message
    assert "\n" not in message
    return None


def signed(config, tensors):
    """The folder of someone who knows how the checksums are made."""
    blob = save(tensors)
    config["tensors"] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    config["sha256"] = checksum(config)
    return {CONFIG: json.dumps(config).encode(), TENSORS: blob}


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
        adapter, files, _ = sources[i % len(SOURCES)]
        name = rng.choice([CONFIG, TENSORS])
        loaded = load(write(tmp_path / str(i), files | {name: damaged(files[name], rng)}))
        refused += loaded is None
        assert loaded is None or same(vars(loaded), vars(adapter))
    assert refused > 90
    of_another = save_adapter(Whitening("pca", n_components=2).fit(X + 1), tmp_path / "another")
    mixed = sources[0][1] | {TENSORS: (of_another / TENSORS).read_bytes()}
    assert load(write(tmp_path / "mixed", mixed)) is None


MAP, OFFSET = "state.map_.matrix", "state.map_.offset"


def config_with(*path, value):
    def change(config, arrays):
        for key in path[:-1]:
            config = config[key]
        config[path[-1]] = value

    return change


def rebuilt(name, array):
    """Another array in both files, so that they agree."""

    def change(config, arrays):
        for key in name.split("."):
            config = config[key]
        config |= {"dtype": array.dtype.name, "shape": list(array.shape), "order": "C"}
        arrays[name] = array

    return change


ONE_BY_ONE = {
    "missing array": lambda config, arrays: arrays.pop(MAP),
    "swapped arrays": lambda config, arrays: arrays.update(
        {MAP: arrays[OFFSET], OFFSET: arrays[MAP]}
    ),
    "other dtype": lambda config, arrays: arrays.update({MAP: arrays[MAP].astype(np.float32)}),
    "too narrow": rebuilt(MAP, np.zeros((2, 4))),
    "NaN in the map": rebuilt(MAP, np.full((2, 5), np.nan)),
    "head of another width": rebuilt("state.head_.coef", np.zeros((3, 5))),
    "NaN in the moments": rebuilt("state.moments_.scatter", np.full((5, 5), np.nan)),
    "no rows seen": rebuilt("state.moments_.count", np.array(0.0)),
    "class from elsewhere": config_with("class", value="os.system"),
    "unknown key": config_with("pickle", value="x"),
    "bad parameter": config_with("parameters", "shrinkage", value=2.0),
    "method overridden": config_with("state", "transform", value=1),
    "wrong width": config_with("state", "n_features_in_", value=4),
    "repeated label": config_with("state", "head_", "classes", "values", value=["a", "a", "b"]),
    "future format": config_with("format_version", value=True),
}


def test_what_is_not_an_adapter_is_refused(sources, tmp_path):
    adapter, files, tensors = sources[0]
    intact = load(write(tmp_path / "intact", signed(json.loads(files[CONFIG]), tensors)))
    assert same(vars(intact), vars(adapter))
    for name, change in ONE_BY_ONE.items():
        config, arrays = json.loads(files[CONFIG]), dict(tensors)
        change(config, arrays)
        assert load(write(tmp_path / name, signed(config, arrays))) is None, name


@pytest.mark.parametrize("kind", ["missing", "link"])
def test_files_that_are_not_files(kind, sources, tmp_path):
    _, files, _ = sources[0]
    for name in (CONFIG, TENSORS):
        folder = write(tmp_path / f"{name}-{kind}", files)
        (folder / name).unlink()
        if kind == "link":
            (tmp_path / f"real-{name}").write_bytes(files[name])
            (folder / name).symlink_to(tmp_path / f"real-{name}")
        assert load(folder) is None, name


def test_odd_json(sources, tmp_path):
    _, files, _ = sources[0]
    texts = ["[" * 10**5, '{"a":' * 10**5, "1" * 10**5, "null", "NaN", "", '"\\ud800"', "\xff"]
    for number, text in enumerate(texts):
        odd = files | {CONFIG: text.encode("latin-1")}
        assert load(write(tmp_path / str(number), odd)) is None, text[:9]
