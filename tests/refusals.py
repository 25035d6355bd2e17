"""Tests of what must be refused."""

from inspect import signature

import pytest


def refusals(*cases, call=lambda case: case(), errors=ValueError):
    """A test of cases: what is called, or what is given to `call`, and a word of the message.

    A case may end with its own kind of error. Other parameters of `call` are fixtures, of which
    tmp_path must stay empty.
    """
    fixtures = [*signature(call).parameters][1:]

    @pytest.mark.parametrize(("case", "word", "error"), [(*case, errors)[:3] for case in cases])
    def test(case, word, error, request):
        given = {name: request.getfixturevalue(name) for name in fixtures}
        with pytest.raises(error, match=word):
            call(case, **given)
        assert "tmp_path" not in given or not any(given["tmp_path"].iterdir())

    return test
