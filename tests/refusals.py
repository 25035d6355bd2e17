"""Tests of what must be refused."""

import pytest


def refusals(*cases, call=lambda case: case(), errors=ValueError):
    """A test of cases: what is called, or what is given to `call`, and a word of the message."""

    @pytest.mark.parametrize(("case", "word"), cases)
    def test(case, word):
        with pytest.raises(errors, match=word):
            call(case)

    return test
