"""The registry of adapters, used by the command line, the demo, the tests and the benchmarks.

Importing this module imports no adapter, so that the command line can list them at once.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from isoadapt._utils.messages import warn

if TYPE_CHECKING:
    from torch import nn

    from isoadapt.adapters._base import BaseAdapter


class PaperLoss(NamedTuple):
    """A loss with the parameters and the place of its paper; it is imported when it is used."""

    loss_name: str
    where: str = "head_input"  # one of isoadapt.finetune._penalties.PLACES
    settings: Mapping[str, Any] = {}
    lam: float = 1.0  # its weight in fine-tuning, if none is given
    module: str = "isoadapt.losses"

    @property
    def make(self) -> "Callable[..., nn.Module]":
        """Make the loss; the keywords are its parameters."""
        module = importlib.import_module(self.module)
        return partial(getattr(module, self.loss_name), **self.settings)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the loss by name, with their defaults."""
        known = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in known if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


class Method(NamedTuple):
    """A method: the module and class of its adapter, and its loss if it has one."""

    module: str  # in isoadapt.adapters
    adapter: str  # name of the class
    loss: PaperLoss | None = None
    needs_teacher: bool = False  # fitted to the vectors of a teacher, not to labels


REGISTRY = {
    "isotropy-layer": Method("_isotropy_layer", "IsotropyLayer", PaperLoss("IsoScoreLoss")),
    "exact-isotropy-layer": Method("_exact_isotropy_layer", "ExactIsotropyLayer"),
    "istar": Method(
        "_istar", "IStarAdapter", PaperLoss("IsoScoreLoss", "all", {"zeta": 0.2, "form": "linear"})
    ),
    "cosreg": Method("_cosreg", "CosRegAdapter", PaperLoss("CosRegLoss", "last")),
    "spectrum-control": Method(
        "_spectrum_control", "SpectrumControlAdapter", PaperLoss("SpectrumControlLoss")
    ),
    "topological-entropy": Method(
        "_topological_entropy", "TopologicalEntropyAdapter", PaperLoss("PersistentEntropyLoss")
    ),
    "flow": Method("_flow._adapter", "FlowAdapter"),
    "isobn": Method("_isobn", "IsoBN"),
    "all-but-the-top": Method("_all_but_the_top", "AllButTheTop"),
    "cluster-isotropy": Method("_cluster_isotropy", "ClusterIsotropy"),
    "whitening": Method("_whitening", "Whitening"),
    "logit-preserving-whitening": Method("_logit_preserving", "LogitPreservingWhitening"),
    "teacher-readout": Method("_teacher_readout", "TeacherReadout", needs_teacher=True),
}

NEED_TEACHER = {name for name, method in REGISTRY.items() if method.needs_teacher}

NAMES = {name: method.adapter for name, method in REGISTRY.items()}
"""Classes' names by the method's name, which ``isoadapt fit`` takes."""

METHODS = {name: cls for name, cls in NAMES.items() if name not in NEED_TEACHER}
"""Those that need no teacher, which comparisons and ``penalty=`` take."""

MODULES = {method.adapter: f"isoadapt.adapters.{method.module}" for method in REGISTRY.values()}
"""Modules by the name of their adapter's class."""


def adapter_class(name: str) -> "type[BaseAdapter]":
    """Import a class by its name; PenaltyAdapter and AffineAdapter are made in code only."""
    return getattr(importlib.import_module(MODULES[name]), name)


class Variant(NamedTuple):
    """An adapter class with parameters, as a row of a table."""

    name: str  # begins with the class's name, before a comma
    params: Mapping[str, Any] = {}
    brief: bool = True  # whether short tables have this row too
    fast: bool = False  # whether "fast" has it: fitted without epochs, and removes no direction

    @property
    def adapter(self) -> str:
        """Name of the class."""
        return self.name.partition(",")[0]

    def make(self, head: Any) -> Any:
        """Return an instance with the given head."""
        return adapter_class(self.adapter)(head=head, **self.params)


_UNSHRUNK = {"zeta": 0.0, "bias_corrected": True}

VARIANTS = (
    Variant("IsotropyLayer"),
    Variant("ExactIsotropyLayer", fast=True),
    Variant("IStarAdapter, lam=1"),
    Variant("IStarAdapter, lam=-1", {"lam": -1.0}, brief=False),
    Variant("IStarAdapter, lam=1, zeta=0, corrected", _UNSHRUNK, brief=False),
    Variant("CosRegAdapter"),
    Variant("SpectrumControlAdapter, polynomial"),
    Variant("SpectrumControlAdapter, exponential", {"decay": "exponential"}, brief=False),
    Variant("TopologicalEntropyAdapter, selected bars"),
    Variant("TopologicalEntropyAdapter, all bars", {"bars": "all"}, brief=False),
    Variant("FlowAdapter, head refit"),
    Variant("FlowAdapter, alpha=0.5", {"alpha": 0.5}, brief=False),
    Variant("IsoBN, head refit", fast=True),
    Variant("AllButTheTop, head refit"),
    Variant("ClusterIsotropy, head refit"),
    Variant("Whitening, head refit", fast=True),
    Variant("Whitening, oas, head refit", {"shrinkage": "oas"}, brief=False, fast=True),
    Variant("LogitPreservingWhitening", fast=True),
)


def installed_variants() -> list[Variant]:
    """Return the variants that can be fitted here; warn of those whose package is not installed."""
    if importlib.util.find_spec("zuko") is not None:
        return list(VARIANTS)
    warn(
        "FlowAdapter is left out, because it needs zuko, which is not installed: "
        'pip install "isoadapt[flow]"'
    )
    return [variant for variant in VARIANTS if variant.adapter != "FlowAdapter"]
