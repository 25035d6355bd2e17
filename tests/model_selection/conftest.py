"""What the comparisons and searches of a module share."""

import pytest

from isoadapt.adapters import _heads


@pytest.fixture(scope="module")
def fixed_penalties():
    """Fit all logistic heads of a module with the C their search starts from, which is fast."""
    fit = _heads._fit_logistic
    with pytest.MonkeyPatch.context() as patch:
        # All rows in one fold: the others lack a class, so that C is not searched.
        patch.setattr(_heads, "_fit_logistic", lambda *rows: fit(*rows[:3], 0 * rows[3]))
        yield
