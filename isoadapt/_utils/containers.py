"""Conversion of matrices, and of labels and other values of rows, from any container to arrays."""

import pickle
import re
from collections.abc import Hashable
from numbers import Number
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from torch import Tensor
from torch.masked import MaskedTensor

from isoadapt._utils.messages import listed, reason, shown

_PLAIN = "fiubc"  # kinds of dtypes that scikit-learn checks
_EMBED = (
    "embed texts first, by TransformerEncoder or in an AdaptedEncoder, and read vectors that were "
    "saved as text by json.loads, and as bytes by np.frombuffer"
)
_SEVERAL = "for several labels a row, pass the indicator matrix that MultiLabelBinarizer makes"
_OF_NUMPY = (torch.float16, torch.float32, torch.float64)


def as_array(X: Any) -> Any:
    """Convert a tensor or masked array, with NaN or None for masked entries; keep anything else."""
    if isinstance(X, MaskedTensor):
        X = np.ma.array(as_array(X.get_data()), mask=~as_array(X.get_mask()))
    if isinstance(X, np.ma.MaskedArray):
        missing: Any = np.nan if X.dtype.kind in _PLAIN else None
        return np.where(X.mask, missing, X.data)[()] if np.ma.is_masked(X) else X.data
    if not isinstance(X, Tensor):
        return X
    if X.is_nested:
        return list(map(as_array, X.unbind()))
    X = X.dequantize() if X.is_quantized else X.to_dense()
    narrow = X.is_floating_point() and X.dtype not in _OF_NUMPY
    return (X.float() if narrow else X).numpy(force=True)


def as_matrix(X: Any, name: str = "X") -> Any:
    """Convert a column of vectors to a matrix (n, d); return what scikit-learn takes unchanged."""
    if issparse(X) or type(X).__module__.startswith("dask.array"):
        return X
    if isinstance(X, pd.DataFrame) and all(getattr(t, "kind", "O") in _PLAIN for t in X.dtypes):
        return X
    if (table := table_columns(X, name)) is not None:
        X = _of_table(X, *table, name)
    elif not (type(X) in (np.ndarray, np.memmap) and X.dtype.kind in _PLAIN):
        X = check_finite(_numbers(_values(X, name), name), name)
    if len(X.shape) > 2:
        raise ValueError(
            f"{name} has dim {X.ndim}, shape {X.shape}, but one vector for each row is needed, "
            "shape (n_samples, n_features): pool vectors of tokens, as by X.mean(axis=1)"
        )
    return X


def as_values(y: Any, name: str = "y", numeric: bool = False, names: Any = None) -> Any:
    """Convert labels or other values to an array (n,) or (n, k); `names` orders tables' columns."""
    if y is None or (numeric and isinstance(y, Number)):
        return y
    if (table := table_columns(y, name)) is not None:
        found, columns = table
        places = range(len(found)) if names is None else _places(found, names, name)
        array = np.column_stack([_values(columns[place], name) for place in places])
    else:
        array = y.toarray() if issparse(y) else _values(y, name)
    _check_present(pd.isna(array), name, "NaN or None instead of a value")
    if array.dtype.kind in "OT":
        array = _of_one_type(array.astype(object), name)
    return _numbers(array, name, "convert it, or leave the row out") if numeric else array


def as_indicator(y: Any, labels: Any = None, name: str = "y") -> NDArray[np.int64]:
    """Return labels as an indicator matrix (n, n_labels), whose columns may be prescribed."""
    values = np.asarray(as_values(y, name, names=labels))
    values = values[:, None] if values.ndim == 1 else values
    fits = labels is None or values.shape[1:] == labels.shape
    if not fits or not np.isin(values, (0, 1)).all():
        names = "" if labels is None else f"classes={labels.tolist()}"
        raise ValueError(
            f"{name} has shape {np.shape(y)} and the values {np.unique(values)[:5].tolist()}, but "
            "several labels of a row must be an indicator matrix of 0 and 1 with one column for "
            f"each, as sklearn.preprocessing.MultiLabelBinarizer({names}) makes from lists of "
            "labels. One label for each row, of shape (n,), needs a head of another kind"
        )
    return values.astype(np.int64)


def table_columns(X: Any, name: str) -> tuple[list[str], list[Any]] | None:
    """Return names and columns of any table, as of pandas, polars, pyarrow or DuckDB, or None."""
    has_columns = hasattr(X, "columns") or hasattr(X, "column_names")
    if not has_columns or len(getattr(X, "shape", ())) != 2:
        return None
    if hasattr(X, "dask"):
        raise TypeError(f"{name} is a {type(X).__name__} of dask: pass {name}.compute()")
    if hasattr(X, "get_columns"):  # of polars
        return X.columns, X.get_columns()
    if hasattr(X, "with_format"):  # of datasets
        X = X.with_format("pandas", columns=X.format["columns"])[:]
    elif not hasattr(X, "iloc"):  # of pyarrow, or a relation of DuckDB
        X = X.to_pandas() if hasattr(X, "to_pandas") else X.df()
    return list(map(str, X.columns)), [X.iloc[:, j] for j in range(X.shape[1])]


def _places(found: list[str], names: Any, name: str) -> list[int]:
    """Return where the columns of a table are that belong to names; numbers keep their places."""
    plain = names.dtype.kind in "iu" or all(re.fullmatch(r"(column_)?\d+", each) for each in found)
    if plain or len(found) != len(names):
        return list(range(len(found)))
    if {*found} != {*map(str, names)}:
        raise ValueError(
            f"{name} has the columns {listed(found)}, but the head has the labels "
            f"{listed(names.tolist())}: rename the columns, or pass an array in the head's order"
        )
    return [found.index(str(each)) for each in names]


def _of_table(X: Any, names: list[str], columns: list[Any], name: str) -> Any:
    """Return a table of numbers, unchanged if it has types, or a column of vectors as a matrix."""
    places = [f"{name}[{each!r}]" for each in names]
    arrays = list(map(_values, columns, places))
    vectors = [each for each, array in zip(names, arrays, strict=True) if array.ndim > 1]
    if vectors and len(names) > 1:
        raise TypeError(
            f"{name} is a {type(X).__name__} with the columns {listed(names)}, and "
            f"{listed(vectors)} hold(s) vectors: choose one such column, {name}[{vectors[0]!r}]"
        )
    numbers = list(map(_numbers, arrays, places))
    named = hasattr(X, "iloc") or hasattr(X, "get_columns")  # which scikit-learn takes
    if named and not vectors:
        return X
    return check_finite(numbers[0] if vectors else np.column_stack(numbers), name)


def _values(X: Any, name: str) -> NDArray[Any]:
    """Return the values of any container but a table as an array; vectors are stacked (n, d)."""
    if hasattr(X, "column_name") and hasattr(X, "source"):  # a column of a datasets.Dataset
        X = X.source.with_format("numpy", columns=[X.column_name])[:][X.column_name]
    X = X.to_pandas() if hasattr(X, "to_pylist") else X  # of pyarrow
    X = X.to_numpy() if hasattr(X, "to_numpy") else as_array(X)
    if isinstance(X, list | tuple):
        X = list(map(as_array, X))
    try:
        array = np.asarray(X)
    except ValueError:  # the rows differ
        array = np.fromiter(X, object, len(X))
    if not array.ndim:
        raise TypeError(
            f"{name} is a {type(X).__name__}, but rows are needed: pass a list, an array, a "
            "tensor, a Series or a column of a table, and collect a lazy one first"
        )
    kinds = set(map(type, X)) if array.dtype.kind == "U" and isinstance(X, list) else set()
    if array.ndim == 1 and kinds - {str, np.str_}:  # NumPy has converted values
        array = np.fromiter(X, object, len(X))
    cells = array.ravel().tolist() if array.dtype.kind == "O" and array.size == len(array) else []
    return _stacked(cells, name) if any(map(_is_vector, cells)) else array


def _stacked(rows: list[Any], name: str) -> NDArray[Any]:
    """Stack vectors; raise an error that names the first row that holds none or a longer one."""
    try:
        return np.stack(list(map(as_array, rows)))
    except ValueError as error:
        lengths = [len(row) if _is_vector(row) else 0 for row in rows]
        odd = next((i for i, n in enumerate(lengths) if n != lengths[0] or not n), 0)
        raise ValueError(
            f"{name} must hold vectors of the same length in all rows, but there are {lengths[0]} "
            f"values in row 0 and {lengths[odd]} in row {odd}, {shown(rows[odd])}: leave out rows "
            f"without a vector, and pool vectors of tokens; {_SEVERAL}"
        ) from error


def _numbers(array: Any, name: str, way_out: str = _EMBED) -> NDArray[Any]:
    """Convert objects and strings to float64; raise an error that names another value."""
    if array.dtype.kind in _PLAIN:
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        _check_present(pd.isna(array), name, "NaN or None instead of a value")
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{name} must hold numbers ({reason(error)[:120]}): {way_out}"
        ) from error


def _of_one_type(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert objects to booleans, integers or floats if all are such; raise if they are mixed."""
    inferred, values = np.array(array.tolist()), array.ravel().tolist()
    if inferred.dtype.kind in "biuf":
        return inferred
    if inferred.dtype.kind == "O" and all(hasattr(value, "__float__") for value in values):
        return array.astype(np.float64)
    try:
        sorted(set(values))
    except TypeError as error:
        kinds = sorted({type(value).__name__ for value in values})
        raise TypeError(
            f"{name} holds values of several types ({', '.join(kinds)}), or what cannot be sorted: "
            f"pass list(map(str, values)), or only numbers; {_SEVERAL}"
        ) from error
    return array


def check_finite(X: Any, name: str) -> Any:
    """Return X; raise ValueError if it holds NaN or infinity."""
    _check_present(~np.isfinite(np.asarray(X)), name, "NaN or infinite numbers")
    return X


def _check_present(missing: NDArray[np.bool_], name: str, found: str) -> None:
    """Raise ValueError if there are rows with a missing value."""
    if len(rows := np.nonzero(missing)[0]):
        raise ValueError(
            f"Input {name} contains {found} in {len(set(rows))} row(s), the first in row "
            f"{rows[0]}: leave these rows out, or fill in what is missing"
        )


def _is_vector(row: Any) -> bool:
    """Whether a cell of a column is a sequence of values."""
    sized = hasattr(row, "__len__") and not isinstance(row, str | bytes | dict | set)
    return sized and getattr(row, "ndim", 1) > 0


def comparable(value: Any) -> Any:
    """Return a hashable object that is equal for values of equal content that can be pickled."""
    try:
        return joblib.hash(value)
    except (pickle.PicklingError, TypeError, AttributeError):  # such as a lambda
        return value if isinstance(value, Hashable) else object()  # equal to nothing else
