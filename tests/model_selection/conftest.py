"""What the comparisons and searches of a module share."""

import pytest

from isoadapt.adapters import _heads
from isoadapt.model_selection import compare_adapters
from tests.model_selection.comparisons import TEST, X, y


@pytest.fixture(scope="module")
def fixed_penalties():
    """Fit all logistic heads of a module with the C their search starts from, which is fast."""
    fit = _heads._fit_logistic
    with pytest.MonkeyPatch.context() as patch:
        # All rows in one fold: the others lack a class, so that C is not searched.
        patch.setattr(_heads, "_fit_logistic", lambda *rows: fit(*rows[:3], 0 * rows[3]))
        yield


@pytest.fixture(scope="module")
def plain(fixed_penalties):
    """A comparison of Whitening, judged on other rows."""
    return compare_adapters(X, y, "Whitening", **TEST)
