"""The parameters and fitted attributes in the docstrings of the adapters."""

import ast
import inspect
import pydoc
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from numpydoc.docscrape import ClassDoc

from isoadapt import LinearHead, PenaltyAdapter, TeacherReadout, adapters
from isoadapt.adapters._registry import ADAPTERS
from tests.adapters.examples import PENALISED as WITH_A_LOSS_OF_THEIR_OWN

# Groups of adapters whose shared entries have the same text.
PENALISED = (*WITH_A_LOSS_OF_THEIR_OWN, PenaltyAdapter)
REFIT = adapters.IsoBN, adapters.AllButTheTop, adapters.ClusterIsotropy, adapters.Whitening

# Parameters and attributes of one name that differ in meaning, so that their texts may differ.
DIFFERENT = {
    "lam",  # the effect of its sign depends on the penalty
    "bias_corrected",  # in IStarAdapter it replaces the shrinkage
    "solver",  # in IStarAdapter "exact" restricts lam and zeta
    "n_components",  # removed by AllButTheTop and ClusterIsotropy, kept by Whitening
    "map_",  # ClusterIsotropy has a class of its own
    "history_",  # "exact" has entries of another kind, as it has no epochs
    "n_iter_",
    "best_epoch_",
}
LIKE = "as in :class:`IsotropyLayer`"


class Entry(NamedTuple):
    kind: str
    default: str
    text: str


def entries(adapter, section):
    found = {}
    for name, kind, text in ClassDoc(adapter)[section]:
        kind, _, default = kind.partition(", default=")
        found[name] = Entry(kind, default, "\n".join(text))
    return found


@pytest.mark.parametrize("adapter", [*ADAPTERS.values(), PenaltyAdapter])
class TestEveryAdapter:
    def test_every_parameter_is_documented_in_order_with_its_default(self, adapter):
        parameters = inspect.signature(adapter).parameters
        documented = entries(adapter, "Parameters")
        assert list(documented) == list(parameters)
        for name, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty:
                assert not documented[name].default
            else:
                assert ast.literal_eval(documented[name].default) == parameter.default, name

    def test_every_fitted_attribute_is_documented(self, adapter):
        X, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
        estimator = adapter(lambda Z: Z.var()) if adapter is PenaltyAdapter else adapter()
        estimator.set_params(head=LinearHead(np.eye(2, 4), np.zeros(2), [0, 1]))
        if "max_epochs" in estimator.get_params():
            estimator.set_params(max_epochs=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = estimator.partial_fit if adapter is TeacherReadout else estimator.fit
            fitted = fit(X, X if adapter is TeacherReadout else y)
        found = {name for name in dir(fitted) if name.endswith("_") and name[0] != "_"}
        assert found | {"feature_names_in_"} == set(entries(adapter, "Attributes"))

    def test_signatures_in_help_are_short(self, adapter):
        if adapter is not adapters.FlowAdapter:
            assert "numpy._typing" not in pydoc.plain(pydoc.render_doc(adapter))


@pytest.mark.parametrize("section", ["Parameters", "Attributes"])
@pytest.mark.parametrize("group", [PENALISED, REFIT], ids=["penalised", "refitted"])
def test_shared_entries_have_one_text(group, section):
    """The long texts are those of IsotropyLayer, which the others name."""
    tables = [entries(adapter, section) for adapter in group]
    for name in sorted(set().union(*tables) - DIFFERENT):
        found = {table[name][::2] for table in tables if name in table}
        if any(LIKE in " ".join(text.split()) for _, text in found):
            found.discard(entries(adapters.IsotropyLayer, section)[name][::2])
        assert len(found) <= 1, name
