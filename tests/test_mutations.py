"""The list of mutations fits the present code; `make mutations` applies them."""

import pytest

from tests.mutations import MUTATIONS, Mutation, check_texts


def test_every_mutation_has_its_place_and_its_tests():
    check_texts(MUTATIONS)


@pytest.mark.parametrize(
    ("mutation", "problem"),
    [
        (Mutation("heads.py", "no such text", "", "test_heads.py"), "occurs 0 times, not once"),
        (MUTATIONS[0]._replace(tests="test_absent.py"), "there is no tests/test_absent.py"),
    ],
)
def test_a_mutation_without_a_place_or_a_test_is_named(mutation, problem):
    with pytest.raises(SystemExit, match=problem):
        check_texts([mutation])
