"""Matrices from .npy and Parquet files, and tables of texts from Parquet."""

import sys

import numpy as np
import pandas as pd
import pytest

from isoadapt.datasets import load_table
from isoadapt.datasets._matrices import load_matrix

X = np.arange(12.0).reshape(4, 3) ** 1.5


def frame(**columns):
    return pd.DataFrame({f"f{i}": X[:, i] for i in range(3)} | columns)


class TestNpy:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
    def test_the_matrix_as_it_is(self, dtype, tmp_path):
        np.save(tmp_path / "X.npy", X.astype(dtype))
        found, labels = load_matrix(tmp_path / "X.npy")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, X.astype(dtype))
        assert labels is None

    def test_labels_beside_it(self, tmp_path):
        np.save(tmp_path / "X.npy", X)
        np.save(tmp_path / "y.npy", np.array(["a", "b", "a", "b"]))
        assert load_matrix(tmp_path / "X.npy", labels=tmp_path / "y.npy")[1].tolist() == list(
            "abab"
        )
        np.save(tmp_path / "y.npy", np.zeros(3))
        with pytest.raises(ValueError, match=r"shape \(3,\), but there are 4 rows"):
            load_matrix(tmp_path / "X.npy", labels=tmp_path / "y.npy")
        with pytest.raises(FileNotFoundError, match=r"labels=.*absent"):
            load_matrix(tmp_path / "X.npy", labels=tmp_path / "absent.npy")

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros(3), r"float64 of shape \(3,\); it must hold a matrix"),
            (np.array([["a"]]), "a matrix of numbers"),
            (np.array([[1.0, np.nan]]), "NaN or infinite"),
            (np.array([[{}]], dtype=object), "not an array of numbers"),
        ],
    )
    def test_what_is_no_matrix(self, array, message, tmp_path):
        np.save(tmp_path / "X.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            load_matrix(tmp_path / "X.npy")

    def test_other_files(self, tmp_path):
        (tmp_path / "X.npy").write_bytes(b"")
        with pytest.raises(ValueError, match=r"numpy\.save"):
            load_matrix(tmp_path / "X.npy")
        (tmp_path / "X.csv").write_text("a\n1\n")
        with pytest.raises(ValueError, match=r"is not a \.npy or \.parquet file"):
            load_matrix(tmp_path / "X.csv")
        with pytest.raises(FileNotFoundError, match="absent"):
            load_matrix(tmp_path / "absent.npy")


class TestParquet:
    def write(self, folder, table):
        table.to_parquet(folder / "X.parquet", index=False)
        return folder / "X.parquet"

    def test_numeric_columns_are_features(self, tmp_path):
        table = frame(text=list("abcd"), flag=[True] * 4, label=[1, 0, 1, 0])
        found, labels = load_matrix(self.write(tmp_path, table))
        assert list(found.columns) == ["f0", "f1", "f2"]
        np.testing.assert_array_equal(found.to_numpy(), X)
        assert labels.tolist() == [1, 0, 1, 0]

    def test_labels_by_name_and_none(self, tmp_path):
        path = self.write(tmp_path, frame(kind=["x", "y", "x", "y"]))
        _, labels = load_matrix(path, label="kind")
        assert labels.dtype.kind == "U"
        assert labels.tolist() == ["x", "y", "x", "y"]
        assert load_matrix(path)[1] is None
        assert list(load_matrix(path, label="f2")[0].columns) == ["f0", "f1"]
        with pytest.raises(ValueError, match=r"label='absent' is not a column"):
            load_matrix(path, label="absent")

    def test_single_precision_stays(self, tmp_path):
        found, _ = load_matrix(self.write(tmp_path, frame().astype(np.float32)))
        assert set(found.dtypes) == {np.dtype(np.float32)}
        mixed = frame().astype({"f0": np.float32, "f1": np.int8})
        assert set(load_matrix(self.write(tmp_path, mixed))[0].dtypes) == {np.dtype(np.float64)}

    def test_wanted_features_in_their_order(self, tmp_path):
        path = self.write(tmp_path, frame())
        assert list(load_matrix(path, features=["f2", "f0"])[0].columns) == ["f2", "f0"]
        with pytest.raises(ValueError, match=r"no numeric columns \['g'\]"):
            load_matrix(path, features=["f0", "g"])

    @pytest.mark.parametrize("kind", ["arrays", "fixed", "half", "integers"])
    def test_the_only_column_of_vectors_is_taken(self, tmp_path, kind):
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        rows = (X * 8).round().astype({"half": "float16", "integers": "int8"}.get(kind, "float32"))
        column = pa.array(
            list(rows), pa.list_(pa.array(rows[0]).type, 3 if kind == "fixed" else -1)
        )
        columns = {"id": range(4), "embedding": column, "label": [1, 0, 1, 0]}
        parquet.write_table(pa.table(columns), tmp_path / "X.parquet")
        found, labels = load_matrix(tmp_path / "X.parquet")
        assert found.dtype == (np.float32 if kind in ("arrays", "fixed") else np.float64)
        np.testing.assert_array_equal(found, rows)
        assert labels.tolist() == [1, 0, 1, 0]

    def test_columns_of_vectors_that_are_unclear_or_faulty(self, tmp_path):
        table = pd.DataFrame({"a": list(X), "b": list(-X), "tokens": [[1], [1, 2]] * 2})
        path = self.write(tmp_path, table)
        with pytest.raises(ValueError, match=r"several columns of vectors \('a', 'b'\).*--text a"):
            load_matrix(path)
        np.testing.assert_array_equal(load_matrix(path, features=["b"])[0], -X)
        self.write(tmp_path, frame().assign(tokens=[[1], [1, 2]] * 2))
        np.testing.assert_array_equal(load_matrix(path)[0].to_numpy(), X)
        for rows, message in (
            ([*X[:3], X[0, :1]], "column 'e' holds rows of different lengths, 3 in row 0 and 1 in"),
            (
                [*X[:3], None],
                "column 'e' contains NaN or None instead of a vector in 1 row.*first in row 3",
            ),
            ([*X[:3], [1.0, np.nan, 2.0]], "NaN or infinite numbers in 1 row.*first in row 3"),
        ):
            self.write(tmp_path, pd.DataFrame({"e": rows}))
            with pytest.raises(ValueError, match=message):
                load_matrix(path)

    def test_what_is_no_matrix(self, tmp_path):
        with pytest.raises(ValueError, match="no numeric column; its columns are"):
            load_matrix(self.write(tmp_path, pd.DataFrame({"text": ["a"]})))
        with pytest.raises(ValueError, match="NaN or infinite"):
            load_matrix(self.write(tmp_path, frame(f3=[1.0, None, 2.0, 3.0])))
        with pytest.raises(ValueError, match="'label' has empty cells"):
            load_matrix(self.write(tmp_path, frame(label=["a", None, "b", "b"])))
        (tmp_path / "X.parquet").write_bytes(b"no parquet")
        with pytest.raises(ValueError, match="not a valid Parquet file"):
            load_matrix(tmp_path / "X.parquet")

    def test_a_missing_package_is_named(self, tmp_path, monkeypatch):
        path = self.write(tmp_path, frame())
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r'Reading Parquet.*"isoadapt\[data\]"'):
            load_matrix(path)

    def test_texts_read_as_from_a_text_file(self, tmp_path):
        for name, labels in {
            "int": [1, 0],
            "float": [0.5, 2.25],
            "str": ["good", "bad"],
            "bool": [True, False],
        }.items():
            table = pd.DataFrame({"sentence": ['a "tab\t', "b\nc"], "label": labels})
            texts, found = load_table(self.write(tmp_path, table))
            assert texts == table["sentence"].tolist()
            assert found.tolist() == labels
            assert found.dtype.kind == {"int": "i", "float": "f", "str": "U", "bool": "i"}[name]
        pairs = pd.DataFrame({"sentence1": ["a"], "sentence2": ["b"]})
        assert load_table(self.write(tmp_path, pairs)) == ([("a", "b")], None)

    def test_an_empty_label_of_a_text_is_refused(self, tmp_path):
        table = pd.DataFrame({"sentence": ["a", "b"], "label": ["x", None]})
        with pytest.raises(ValueError, match=r"line 2: the label is empty"):
            load_table(self.write(tmp_path, table))
