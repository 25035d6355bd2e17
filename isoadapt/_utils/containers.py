"""Conversion of matrices, and of labels and other values of rows, from any container to arrays."""

import pickle
import re
from collections.abc import Hashable
from numbers import Number
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from torch import Tensor

from isoadapt._utils.messages import listed, reason, shortened, shown

_PLAIN = "fiubc"  # kinds of dtypes that scikit-learn checks
_EMBED = (
    "embed texts first, by TransformerEncoder or in an AdaptedEncoder, and read vectors that were "
    "saved as text by json.loads, and as bytes by np.frombuffer"
)
_SEVERAL = "for several labels a row, pass the indicator matrix that MultiLabelBinarizer makes"
_NO_VECTOR = "NaN or None instead of a vector"
_OF_NUMPY = (torch.float16, torch.float32, torch.float64)


def as_array(X: Any, name: str = "X") -> Any:
    """Convert a tensor of numbers to an array, narrow floats to float32; keep anything else."""
    if not isinstance(X, Tensor):
        return X
    if X.is_nested or X.is_meta or X.layout is not torch.strided:
        kind = "nested" if X.is_nested else "without values" if X.is_meta else str(X.layout)
        way_out = "with one vector for each row" if X.is_nested else f"as by {name}.to_dense()"
        raise TypeError(f"{name} is a tensor ({kind}); pass a dense one, {way_out}")
    try:
        X = X.dequantize() if X.is_quantized else X
        narrow = X.is_floating_point() and X.dtype not in _OF_NUMPY
        return (X.float() if narrow else X).numpy(force=True)
    except (RuntimeError, TypeError) as error:
        raise TypeError(
            f"{name} is a tensor of {X.dtype}, which has no equal in NumPy; pass {name}.float()"
        ) from error


def as_matrix(X: Any, name: str = "X") -> Any:
    """Convert a matrix or a column of vectors to what scikit-learn's ``check_array`` accepts.

    A column of vectors becomes a matrix (n, d). Arrays, tables of numbers, sparse matrices and dask
    arrays are returned unchanged, so that memory maps are not read and names of columns are kept.
    TypeError or ValueError name the first row that holds no vector or no number.
    """
    if issparse(X) or type(X).__module__.startswith("dask.array"):
        return X
    if is_table(X):
        X = _of_table(X, name)
    elif not (type(X) in (np.ndarray, np.memmap) and X.dtype.kind in _PLAIN):
        X = check_finite(_numbers(_values(X, name), name), name)
    if len(X.shape) > 2:
        raise ValueError(
            f"{name} has dim {X.ndim}, shape {X.shape}, but one vector for each row is needed, "
            "shape (n_samples, n_features): pool vectors of tokens, as by X.mean(axis=1)"
        )
    return X


def as_values(y: Any, name: str = "y", numeric: bool = False, names: Any = None) -> Any:
    """Convert labels, weights or other values of rows to an array (n,) or (n, k); keep None.

    Objects become numbers if all of them are, and `numeric` values must be. A missing value raises
    ValueError, and values of types that have no order TypeError. `names` orders a table's columns.
    """
    if y is None or (numeric and isinstance(y, Number)):
        return y
    if is_table(y):
        found, columns = table_columns(y, name)
        places = range(len(found)) if names is None else _places(found, names, name)
        array = np.column_stack([_values(columns[place], name) for place in places])
    else:
        array = y.toarray() if issparse(y) else _values(y, name)
    if array.dtype.kind in "OT":
        array = _of_one_type(array.astype(object), name)
    if array.dtype.kind in "fmM":
        _check_present(np.argwhere(array != array)[:, 0], name)
    return _numbers(array, name, "convert it, or leave the row out") if numeric else array


def as_indicator(y: Any, labels: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """Return labels as an indicator matrix (n, n_labels), whose columns may be prescribed."""
    values = np.asarray(as_values(y, names=labels))
    values = values[:, None] if values.ndim == 1 else values
    fits = labels is None or values.shape[1:] == labels.shape
    if not fits or not np.isin(values, (0, 1)).all():
        names = "" if labels is None else f"classes={labels.tolist()}"
        raise ValueError(
            f"y has shape {np.shape(y)} and the values {np.unique(values)[:5].tolist()}, but must "
            "be an indicator matrix of 0 and 1 with one column for each label of the multi-label "
            f"head, as sklearn.preprocessing.MultiLabelBinarizer({names}) makes from lists of "
            "labels; or fit another head"
        )
    return values.astype(np.int64)


def is_missing(value: Any) -> bool:
    """Whether a value is None, or a NaN, NaT or pandas.NA, none of which is equal to itself."""
    try:
        return value is None or bool(value != value)
    except (ArithmeticError, RuntimeError, TypeError, ValueError):  # as for pandas.NA
        return type(value).__name__ == "NAType"


def is_table(X: Any) -> bool:
    """Whether X is a table of pandas, polars, pyarrow, datasets or dask."""
    has_columns = hasattr(X, "columns") or hasattr(X, "column_names")
    return has_columns and len(getattr(X, "shape", ())) == 2


def table_columns(X: Any, name: str) -> tuple[list[str], list[Any]]:
    """Return the names and the columns of a table."""
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


def _of_table(X: Any, name: str) -> Any:
    """Return a table of numbers unchanged, and a single column of vectors as a matrix."""
    dtypes = () if hasattr(X, "dask") else getattr(X, "dtypes", ())
    unique = getattr(getattr(X, "columns", None), "is_unique", True)  # or scikit-learn refuses X
    if len(dtypes) and unique and all(getattr(each, "kind", "O") in _PLAIN for each in dtypes):
        return X
    names, columns = table_columns(X, name)
    arrays = [(names[j], _values(each, f"{name}[{names[j]!r}]")) for j, each in enumerate(columns)]
    vectors = [each for each, array in arrays if array.ndim > 1]
    if vectors and len(names) == 1:
        return check_finite(_numbers(arrays[0][1], name), name)
    if vectors:
        raise TypeError(
            f"{name} is a {type(X).__name__} with the columns {listed(names)}, of which "
            f"{listed(vectors)} hold(s) vectors: choose one such column, {name}[{vectors[0]!r}]"
        )
    numbers = [_numbers(array, f"{name}[{each!r}]") for each, array in arrays]
    named = hasattr(X, "iloc") or hasattr(X, "get_columns")  # which scikit-learn takes
    return X if named and unique else check_finite(np.column_stack(numbers), name)


def _values(X: Any, name: str) -> NDArray[Any]:
    """Return the values of any container but a table as an array; vectors are stacked (n, d)."""
    X = as_array(X, name)
    if isinstance(X, np.ma.MaskedArray):
        _check_present(
            np.argwhere(np.ma.getmaskarray(X))[:, 0],
            name,
            "NaN or None instead of an unmasked value",
        )
        X = X.data
    if hasattr(X, "column_name") and hasattr(X, "source"):  # a column of a datasets.Dataset
        X = X.source.with_format("numpy", columns=[X.column_name])[:][X.column_name]
    X = X.to_pandas() if hasattr(X, "to_pylist") else X  # of pyarrow
    if hasattr(X, "is_null") and X.dtype.is_nested():  # polars fills missing vectors with NaN
        _check_present(np.flatnonzero(X.is_null().to_numpy()), name, _NO_VECTOR)
    X = X.to_numpy() if hasattr(X, "to_numpy") else X
    try:
        tensors = isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], Tensor)
        array = as_array(torch.stack([*X]), name) if tensors else np.asarray(X)
    except (TypeError, ValueError, RuntimeError):  # the rows differ, or hold tensors
        array = np.fromiter(X, object, len(X))
    if not array.ndim:
        raise TypeError(
            f"{name} is a {type(X).__name__}, but rows are needed: pass a list, an array, a "
            "tensor, a Series or a column of a table, and collect a lazy one first"
        )
    kinds = set(map(type, X)) if array.ndim == 1 and isinstance(X, list | tuple) else set()
    if array.dtype.kind == "U" and kinds - {str, np.str_}:  # NumPy has converted values
        array = np.fromiter(X, object, len(X))
    cells = array.ravel().tolist() if array.dtype.kind == "O" and array.size == len(array) else []
    return _stacked(cells, name) if any(map(_is_vector, cells)) else array


def _stacked(rows: list[Any], name: str) -> NDArray[Any]:
    """Stack vectors; raise an error that names the first row that is missing or of other length."""
    try:
        return np.stack([as_array(row, name) for row in rows])
    except ValueError as error:
        odd = [i for i, row in enumerate(rows) if not _is_vector(row)]
        _check_present([i for i in odd if is_missing(rows[i])], name, _NO_VECTOR)
        if not odd:
            _check_lengths([len(row) for row in rows], name)
        where = f"row {odd[0]} holds {shown(rows[odd[0]])}" if odd else reason(error)
        raise ValueError(f"{name} must hold one vector for each row, but {where}") from error


def _numbers(array: Any, name: str, way_out: str = _EMBED) -> NDArray[Any]:
    """Convert objects and strings to float64; raise an error that names the first other value."""
    if array.dtype.kind in _PLAIN:
        return array
    if array.dtype.names or array.dtype.kind in "mM":
        raise TypeError(
            f"{name} has the dtype {array.dtype}, but numbers are needed: convert it, and records "
            "by numpy.lib.recfunctions.structured_to_unstructured"
        )
    try:
        return array.astype(np.float32 if array.dtype.kind == "V" else np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        place, value = next(each for each in np.ndenumerate(array) if not _is_number(each[1]))
        where = ", ".join(f"{what} {i}" for what, i in zip(("row", "column"), place, strict=False))
        value = value.item() if isinstance(value, np.generic) else value
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{name} holds {shown(value)} in {where}, but numbers are needed "
            f"({shortened(reason(error))}): {way_out}"
        ) from error


def _is_number(value: Any) -> bool:
    try:
        return value is None or isinstance(float(value), float)
    except (TypeError, ValueError, OverflowError):
        return False


def _of_one_type(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert objects to booleans, integers or floats if all are such; raise if they are mixed."""
    missing = [place[0] for place, value in np.ndenumerate(array) if is_missing(value)]
    _check_present(missing, name)
    inferred, values = np.array(array.tolist()), array.ravel().tolist()
    if inferred.dtype.kind in "biuf":
        return inferred
    if inferred.dtype.kind == "O" and all(hasattr(value, "__float__") for value in values):
        return array.astype(np.float64)
    kinds = {type(value).__name__ for value in values}
    try:  # dicts have no order, and NumPy would order sets by inclusion
        np.unique([{}, {}] if kinds & {"set", "frozenset"} else array)
    except TypeError as error:
        raise TypeError(
            f"{name} holds values of several types ({', '.join(sorted(kinds))}), or what cannot "
            f"be sorted: pass list(map(str, values)), or only numbers; {_SEVERAL}"
        ) from error
    return array


def check_finite(X: Any, name: str) -> Any:
    """Return X; raise ValueError if it holds NaN or infinity."""
    found = "NaN or infinite numbers" if np.isnan(np.asarray(X)).any() else "infinity"
    _check_present(np.argwhere(~np.isfinite(X))[:, 0], name, found)
    return X


def _check_present(missing: Any, name: str, found: str = "NaN or None instead of a value") -> None:
    """Raise ValueError if there are rows whose value is missing."""
    if len(missing):
        raise ValueError(
            f"Input {name} contains {found} in {len(set(missing))} row(s), "
            f"the first in row {missing[0]}: leave these rows out, or fill in what is missing"
        )


def _check_lengths(lengths: Any, name: str) -> None:
    """Raise ValueError unless all vectors have the same length."""
    other: Any = np.flatnonzero(np.asarray(lengths) != lengths[0]) if len(lengths) else ()
    if len(other):
        raise ValueError(
            f"{name} holds rows of different lengths, {lengths[0]} in row 0 and "
            f"{lengths[other[0]]} in row {other[0]}: pass vectors of one encoder, pooled over "
            f"tokens; {_SEVERAL}"
        )


def _is_vector(row: Any) -> bool:
    """Whether a cell of a column is a sequence of values."""
    sized = hasattr(row, "__len__") and not isinstance(row, str | bytes | dict | set)
    return sized and getattr(row, "ndim", 1) > 0


def comparable(value: Any) -> Any:
    """Return a hashable object that is equal for values of a parameter with equal content."""
    try:
        return joblib.hash(value)
    except (pickle.PicklingError, TypeError, AttributeError):  # such as a lambda
        pass
    if isinstance(value, BaseEstimator):
        parameters = sorted(value.get_params(deep=False).items())
        return type(value), *((name, comparable(part)) for name, part in parameters)
    if isinstance(value, list | tuple):
        return tuple(comparable(part) for part in value)
    return value if isinstance(value, Hashable) else object()  # equal to nothing else
