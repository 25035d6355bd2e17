"""The private functions and classes of scikit-learn that this package uses."""

from sklearn.base import _fit_context
from sklearn.model_selection._validation import (
    _fit_and_score,
    _insert_error_scores,
    _score,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_params,
)
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import (
    _check_method_params,
    _check_n_features,
    _check_sample_weight,
    _num_samples,
)

__all__ = ["HasMethods", "Interval", "InvalidParameterError", "StrOptions", "validate_params"]
__all__ += ["_check_method_params", "_check_n_features", "_check_sample_weight", "_fit_and_score"]
__all__ += ["_fit_context", "_insert_error_scores", "_num_samples", "_safe_indexing", "_safe_split"]
__all__ += ["_score", "_warn_or_raise_about_fit_failures"]
