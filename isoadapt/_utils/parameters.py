"""Parameters of estimators, made comparable."""

import pickle
from collections.abc import Hashable
from typing import Any

import joblib
from sklearn.base import BaseEstimator


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
