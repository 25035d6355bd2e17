"""The symmetric rank-k update of BLAS, without the global interpreter lock."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas


def _load_dsyrk() -> Any:
    """Return SciPy's ``dsyrk`` as a ctypes function, which releases the lock while it runs."""
    capsule = cython_blas.__pyx_capi__["dsyrk"]
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, name(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(address)


_DSYRK = _load_dsyrk()


def add_gram(rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Add AᵀA of the rows A (n, d) to the upper triangle of `out` (d, d), both in C order.

    In contrast to ``rows.T @ rows``, the sum is formed in place and its other half is not filled.
    """
    n, d = rows.shape
    if not (rows.flags.c_contiguous and out.flags.c_contiguous and out.shape == (d, d)):
        raise ValueError("rows and out must be in C order, and out must be of shape (d, d)")
    one = ctypes.byref(ctypes.c_double(1))
    # Fortran reads both as their transposes. The lower half of its order is the upper one here.
    width, height = (ctypes.byref(ctypes.c_int64(size)) for size in (d, n))
    data, total = rows.ctypes.data, out.ctypes.data
    _DSYRK(b"L", b"N", width, height, one, data, width, one, total, width)
