"""Matrices and their labels from .npy and Parquet files."""

import numpy as np
import pandas as pd
import pytest

from isoadapt.datasets._matrices import load_matrix

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
X = np.arange(12.0).reshape(4, 3) ** 1.5


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


class TestNpy:
    def test_the_matrix_as_it_is(self, tmp_path):
        for dtype, mapped in ((np.float64, False), (np.float32, True), (np.int64, False)):
            np.save(tmp_path / "X.npy", X.astype(dtype))
            found, labels = load_matrix(tmp_path / "X.npy", mapped=mapped)
            assert (found.dtype, labels) == (dtype, None)
            np.testing.assert_array_equal(found, X.astype(dtype))

    def test_labels_beside_it(self, tmp_path):
        np.save(tmp_path / "X.npy", X)
        for labels in (np.array(list("abab")), np.array([[1], [0], [1], [2]])):
            np.save(tmp_path / "y.npy", labels)
            found = load_matrix(tmp_path / "X.npy", labels=tmp_path / "y.npy")[1]
            np.testing.assert_array_equal(found, labels.ravel())

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            ("X", np.zeros(4), r"float64 of shape \(4,\)"),
            ("X", np.array([["a"]] * 4), "not numbers of shape"),
            ("X", np.array([[1.0, np.nan]] * 4), "NaN or infinite"),
            ("X", np.array([[Bomb()]] * 4), "holds no numbers or strings"),
            ("y", np.zeros(3), r"shape \(3,\), not one .* of 4 rows"),
            ("y", np.array([1, 0, np.nan, 1]), "NaN .*first in row 2"),
        ],
    )
    def test_what_is_no_matrix_or_no_labels(self, name, array, message, tmp_path):
        files = {each: tmp_path / f"{each}.npy" for each in "Xy"}
        np.save(files["X"], X)
        np.save(files[name], array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            load_matrix(files["X"], labels=files["y"] if name == "y" else None)

    def test_other_files(self, tmp_path):
        for name in ("X.csv", "X.npy"):
            (tmp_path / name).write_text("a\n1\n")
            with pytest.raises(ValueError, match=name):
                load_matrix(tmp_path / name)
        with pytest.raises(FileNotFoundError, match="absent"):
            load_matrix(tmp_path / "absent.npy")


def frame(**columns):
    return pd.DataFrame({f"f{i}": X[:, i] for i in range(3)} | columns)


class TestParquet:
    def load(self, folder, table, **options):
        table = pa.Table.from_pandas(table) if isinstance(table, pd.DataFrame) else table
        parquet.write_table(table, folder / "X.parquet")
        return load_matrix(folder / "X.parquet", **options)

    def test_numeric_columns_are_features(self, tmp_path):
        table = frame(text=list("abcd"), flag=[True] * 4, label=[1, 0, 1, 0])
        found, labels = self.load(tmp_path, table)
        assert list(found.columns) == ["f0", "f1", "f2"]
        np.testing.assert_array_equal(found.to_numpy(), X)
        assert labels.tolist() == [1, 0, 1, 0]
        found = self.load(tmp_path, table, features=["f2", "f0"])[0]  # in this order
        np.testing.assert_array_equal(found.to_numpy(), X[:, [2, 0]])

    def test_labels_by_name_and_none(self, tmp_path):
        table = frame(kind=["x", "y", "x", "y"])
        _, labels = self.load(tmp_path, table, label="kind")
        assert labels.dtype.kind == "U"
        assert labels.tolist() == ["x", "y", "x", "y"]
        assert self.load(tmp_path, table)[1] is None
        for options in ({}, {"with_labels": False}):
            found, labels = self.load(tmp_path, table, label="f2", **options)
            assert list(found.columns) == ["f0", "f1"]
            assert (labels is None) == bool(options)

    def test_only_single_precision_stays(self, tmp_path):
        kinds = {np.float32: np.float32, np.int8: np.float64}
        for first, expected in kinds.items():
            found, _ = self.load(tmp_path, frame().astype(np.float32).astype({"f0": first}))
            assert set(found.dtypes) == {np.dtype(expected)}

    def test_the_only_column_of_vectors_is_taken(self, tmp_path):
        for kind, size in (("float32", -1), ("float32", 3), ("float16", -1), ("int8", -1)):
            rows = (X * 3).round().astype(kind)
            column = pa.array(list(rows), pa.list_(pa.array(rows[0]).type, size))
            columns = {"id": range(4), "embedding": column, "label": [1, 0, 1, 0]}
            found, labels = self.load(tmp_path, pa.table(columns))
            assert found.dtype == (np.float32 if kind == "float32" else np.float64)
            np.testing.assert_array_equal(found, rows)
            assert labels.tolist() == [1, 0, 1, 0]

    def test_a_column_of_vectors_is_chosen(self, tmp_path):
        tokens = [[1], [1, 2]] * 2
        table = pd.DataFrame({"a": list(X), "b": list(-X), "tokens": tokens})
        np.testing.assert_array_equal(self.load(tmp_path, table, features=["b"])[0], -X)
        found, _ = self.load(tmp_path, frame(tokens=tokens))  # integers beside floats
        np.testing.assert_array_equal(found.to_numpy(), X)

    @pytest.mark.parametrize(
        ("columns", "options", "message"),
        [
            ({"e": [*X[:3], X[0, :1]]}, {}, "'e' must hold vectors.*0 and 1 in row 3"),
            ({"e": [*X[:3], None]}, {}, "'e' must hold vectors.*0 in row 3, None"),
            ({"a": list(X), "b": list(-X)}, {}, "'a', 'b'.*--text a"),
            ({"f": X[:, 0]}, {"features": ["f", "g"]}, r"\['g'\]"),
            ({"f": X[:, 0], "label": ["a", None, "b", "b"]}, {}, "row 2: column 'label' is empty"),
            ({"f": X[:, 0], "label": [{"a": 1}] * 4}, {}, "column 'label' holds"),
        ],
    )
    def test_what_is_no_matrix(self, columns, options, message, tmp_path):
        with pytest.raises(ValueError, match=message):
            self.load(tmp_path, pa.table(columns), **options)
