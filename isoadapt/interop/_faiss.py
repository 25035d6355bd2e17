"""Adapters as FAISS transforms, for indexes that exist."""

from typing import Any

import numpy as np

from isoadapt._utils.imports import import_optional
from isoadapt._utils.state import own_state
from isoadapt.interop._pipeline import take_apart


@own_state()
def to_faiss(adapter: Any) -> Any:
    """Convert an affine adapter z = Ah + c to a FAISS transform in float32.

    ``faiss.IndexPreTransform(to_faiss(adapter), index)`` adapts the vectors that are added to the
    index, and the queries.

    Parameters
    ----------
    adapter : adapter or Pipeline
        A fitted affine adapter, or a pipeline of such adapters. An encoder in front and a linear
        model at the end are left out.

    Raises
    ------
    ImportError
        If faiss is not installed.
    NotFittedError
        If an adapter is not fitted.
    TypeError
        If a step of the pipeline is not an adapter.
    ValueError
        If an adapter is not affine.

    Examples
    --------
    >>> from isoadapt.interop import to_faiss
    >>> index = faiss.IndexPreTransform(to_faiss(adapter), faiss.IndexFlatIP(384))  # doctest: +SKIP
    """
    faiss = import_optional("faiss", feature="to_faiss", extra="search")
    map_ = take_apart(adapter).affine()
    transform = faiss.LinearTransform(map_.matrix.shape[1], map_.n_features_out, True)
    for values, target in ((map_.matrix, transform.A), (map_.offset, transform.b)):
        faiss.copy_array_to_vector(np.ravel(values).astype(np.float32), target)
    transform.is_trained = True
    return transform
