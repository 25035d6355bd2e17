"""What importing the package costs, and what a fitted adapter needs."""

import subprocess
import sys

import joblib
import numpy as np
import pytest

import isoadapt
from isoadapt import IsotropyLayer, LinearHead


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_import_loads_nothing_heavy():
    code = (
        "import sys, isoadapt, isoadapt.finetune, isoadapt.datasets, isoadapt.report\n"
        "print(sorted(sys.modules))"
    )
    loaded = python(code).stdout
    assert "'isoadapt.adapters'" in loaded
    for module in ("transformers", "zuko", "matplotlib", "typer", "lmdb", "accelerate", "datasets"):
        assert f"'{module}'" not in loaded


def test_every_public_name_is_there():
    for name in isoadapt.__all__:
        assert getattr(isoadapt, name).__doc__


def test_adapter_loads_where_transformers_cannot_be_imported(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 4)), rng.integers(0, 2, 50)
    head = LinearHead(rng.normal(size=(2, 4)), [0, 0], [0, 1])
    layer = IsotropyLayer(head, max_epochs=1, random_state=0).fit(X, y)
    joblib.dump((layer, X, layer.predict(X)), tmp_path / "layer.joblib")
    completed = python(
        "import sys; sys.modules['transformers'] = None\n"
        "import joblib\n"
        f"layer, X, expected = joblib.load({str(tmp_path / 'layer.joblib')!r})\n"
        "assert (layer.predict(X) == expected).all(); print('same')"
    )
    assert completed.stdout == "same\n", completed.stderr


def test_missing_extra_is_one_message(monkeypatch):
    from isoadapt._utils.optional import import_optional

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'The picture needs matplotlib.*"isoadapt\[plot\]"'):
        import_optional("matplotlib.figure", feature="The picture", extra="plot")
