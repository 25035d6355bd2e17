"""The registry of adapters, used by the command line, the demo, the tests and the benchmarks."""

from typing import Any, NamedTuple

from isoadapt.adapters._all_but_the_top import AllButTheTop
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._cluster_isotropy import ClusterIsotropy
from isoadapt.adapters._cosreg import CosRegAdapter
from isoadapt.adapters._flow._adapter import FlowAdapter
from isoadapt.adapters._isobn import IsoBN
from isoadapt.adapters._isotropy_layer import IsotropyLayer
from isoadapt.adapters._istar import IStarAdapter
from isoadapt.adapters._logit_preserving import LogitPreservingWhitening
from isoadapt.adapters._spectrum_control import SpectrumControlAdapter
from isoadapt.adapters._topological_entropy import TopologicalEntropyAdapter
from isoadapt.adapters._whitening import Whitening


class Variant(NamedTuple):
    """An adapter class with parameters, as a row of a table."""

    name: str
    adapter: type[BaseAdapter]
    params: dict[str, Any]
    brief: bool = True  # whether short tables have this row too

    def make(self, head: Any) -> Any:
        """Return an instance with the given head."""
        return self.adapter(head=head, **self.params)


VARIANTS = (
    Variant("IsotropyLayer, minibatch", IsotropyLayer, {}),
    Variant("IsotropyLayer, exact", IsotropyLayer, {"solver": "exact"}),
    Variant("IStarAdapter, lam=1", IStarAdapter, {"lam": 1.0}),
    Variant("IStarAdapter, lam=-1", IStarAdapter, {"lam": -1.0}, brief=False),
    Variant(
        "IStarAdapter, lam=1, zeta=0, corrected",
        IStarAdapter,
        {"lam": 1.0, "zeta": 0.0, "bias_corrected": True},
        brief=False,
    ),
    Variant("CosRegAdapter", CosRegAdapter, {}),
    Variant("SpectrumControlAdapter, polynomial", SpectrumControlAdapter, {}),
    Variant(
        "SpectrumControlAdapter, exponential",
        SpectrumControlAdapter,
        {"decay": "exponential"},
        brief=False,
    ),
    Variant("TopologicalEntropyAdapter, selected bars", TopologicalEntropyAdapter, {}),
    Variant(
        "TopologicalEntropyAdapter, all bars",
        TopologicalEntropyAdapter,
        {"bars": "all"},
        brief=False,
    ),
    Variant("FlowAdapter, head refit", FlowAdapter, {}),
    Variant("FlowAdapter, alpha=0.5", FlowAdapter, {"alpha": 0.5}, brief=False),
    Variant("IsoBN, head refit", IsoBN, {}),
    Variant("AllButTheTop, head refit", AllButTheTop, {}),
    Variant("ClusterIsotropy, head refit", ClusterIsotropy, {}),
    Variant("Whitening, head refit", Whitening, {}),
    Variant("Whitening, oas, head refit", Whitening, {"shrinkage": "oas"}, brief=False),
    Variant("LogitPreservingWhitening", LogitPreservingWhitening, {}),
)

ADAPTERS: dict[str, type[BaseAdapter]] = {each.adapter.__name__: each.adapter for each in VARIANTS}
"""Adapter classes by name, without PenaltyAdapter, which requires a penalty as a Python object."""
