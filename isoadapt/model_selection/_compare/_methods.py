"""The methods of a comparison: no adapter, the adapters, and the controls that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from isoadapt import ExactIsotropyLayer, FlowAdapter, IsotropyLayer, TeacherReadout
from isoadapt._utils.containers import comparable
from isoadapt._utils.messages import choices
from isoadapt.adapters._affine import TransformerAdapter
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._registry import NAMES, VARIANTS, adapter_class, installed_variants

NO_ADAPTER = "no adapter"
HEAD_REFIT = "head refit only"
SECOND_PASS = "second pass"

BASELINE, CONTROL, ADAPTER = "baseline", "control", "adapter"
HEAD_COLUMNS, ALL_COLUMNS, TEACHER_COLUMNS = "head", "all", "teacher"  # what a method reads
PROBES = {"classify": "logistic", "regress": "ridge"}


@dataclass(frozen=True)
class ComparedMethod:
    """A row of the comparison: its estimator before the fit, and the names of its controls."""

    name: str
    estimator: Any
    kind: str
    controls: tuple[str, ...] = ()
    columns: str = HEAD_COLUMNS  # where there is a teacher
    by_head: bool = False  # whether it is a control by its predictions, of the uses that name it


def make_methods(
    adapters: Any, head: Any, task: str, teacher: bool = False, controls: Collection[str] = ()
) -> list[ComparedMethod]:
    """The baseline, the controls, those of uses among them, and the adapters, in this order."""
    found = [ComparedMethod(NO_ADAPTER, _unchanged(head), BASELINE)]
    common: tuple[str, ...] = ()
    if not needs_fit(head):  # otherwise "no adapter" has a new head already
        found.append(ComparedMethod(HEAD_REFIT, _unchanged(PROBES[task]), CONTROL))
        common = (HEAD_REFIT, *controls)
        found += [ComparedMethod(k, _unchanged(head), CONTROL, by_head=True) for k in controls]
    if teacher:
        probe = _unchanged(PROBES[task])
        found.append(ComparedMethod(SECOND_PASS, probe, CONTROL, columns=TEACHER_COLUMNS))
    chosen: list[ComparedMethod] = []
    for name, template in _choose(adapters, head, teacher).items():
        if (taught := getattr(template, "_needs_teacher", False)) and not teacher:
            raise ValueError(f"adapters: {name!r} is fitted to a teacher's vectors: pass teacher=")
        estimator = _with_head(template, head, task)
        needed = _control(estimator, name, found)
        if needed is not None and needed not in found:
            found.append(needed)
        own = (needed.name,) if needed is not None else ()
        columns = ALL_COLUMNS if taught else HEAD_COLUMNS
        chosen.append(ComparedMethod(name, estimator, ADAPTER, common + own, columns))
    for method in chosen:
        if method.name in {control.name for control in found}:
            raise ValueError(
                f"adapters: a control has the name {method.name!r}; choose another one"
            )
    return found + chosen


def _unchanged(head: Any) -> TransformerAdapter:
    """The embeddings as they are, with a frozen head or one that is fitted."""
    training = "refit" if needs_fit(head) else "frozen"
    return TransformerAdapter(FunctionTransformer(), head=head, head_training=training)


def seeded(estimator: Any, seed: int) -> Any:
    """Clone whose random states are `seed` where they were None."""
    copy = clone(estimator)
    missing = {
        name: seed
        for name, value in copy.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**missing)


def _choose(adapters: Any, head: Any, teacher: bool) -> dict[str, Any]:
    """Estimators by name."""
    if isinstance(adapters, str) and adapters in ("fast", "all"):
        fast = [variant for variant in VARIANTS if variant.fast]
        variants = installed_variants() if adapters == "all" else fast
        made = {variant.name: variant.make(head) for variant in variants}
        return made | ({"TeacherReadout": TeacherReadout()} if teacher else {})
    if isinstance(adapters, Mapping):
        given = {str(name): each for name, each in adapters.items()}
    else:
        given = {}
        several = isinstance(adapters, Iterable) and not isinstance(adapters, str | Pipeline)
        for each in adapters if several else [adapters]:
            name, each = _named(each, head)
            numbers = (f"{name} ({number})" for number in range(2, len(given) + 3))
            given[next(one for one in (name, *numbers) if one not in given)] = each
    for each in given.values():
        if isinstance(each, type) or not (hasattr(each, "fit") and hasattr(each, "transform")):
            raise TypeError(
                f"adapters={each!r} must be 'fast', 'all', the name of an adapter, an estimator "
                "with fit and transform, a list of names and estimators, or a dict of estimators"
            )
    return given


def _named(adapter: Any, head: Any) -> tuple[str, Any]:
    """Name and estimator of an adapter, found by its name if it is a string."""
    if not isinstance(adapter, str):
        return " ".join(repr(adapter).split()), adapter
    for variant in VARIANTS:
        if variant.name == adapter:
            return adapter, variant.make(head)
    name = NAMES.get(adapter, adapter)
    if name not in NAMES.values():
        known = ["fast", "all", *NAMES.values(), *(variant.name for variant in VARIANTS)]
        raise ValueError(
            f"adapters={adapter!r} is not the name of an adapter; {choices(adapter, known)}"
        )
    return name, adapter_class(name)(head=head)


def _with_head(template: Any, head: Any, task: str) -> Any:
    """Clone of an adapter with the head of the comparison, or followed by a probe."""
    estimator = clone(template)
    last = estimator.steps[-1][0] if isinstance(estimator, Pipeline) else None
    name = "head" if last is None else f"{last}__head"
    if name in estimator.get_params():
        return estimator.set_params(**{name: head})
    return TransformerAdapter(estimator, head=head if needs_fit(head) else PROBES[task])


def _control(estimator: Any, name: str, known: list[ComparedMethod]) -> ComparedMethod | None:
    """Control of a trained adapter, trained alike without a penalty; an equal one in `known`."""
    adapter = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    template = _without_penalty(adapter)
    if template is None:
        return None
    if isinstance(estimator, Pipeline):
        template = clone(estimator).set_params(**{estimator.steps[-1][0]: template})
    for method in known:
        if method.kind == CONTROL and comparable(method.estimator) == comparable(template):
            return method
    trained = "exact layer" if isinstance(adapter, ExactIsotropyLayer) else "same layer"
    if isinstance(adapter, FlowAdapter):
        trained = "same flow"
    elif adapter.coordinates == "raw":
        trained += " in raw coordinates"
    title = f"{trained}, no penalty"
    taken = title in {method.name for method in known}
    return ComparedMethod(f"{title}, as {name}" if taken else title, template, CONTROL)


def _without_penalty(adapter: Any) -> Any:
    """Return the same adapter without its penalty, or None for one that is not trained by one."""
    if isinstance(adapter, FlowAdapter | ExactIsotropyLayer):
        return None if adapter.alpha is None else clone(adapter).set_params(alpha=1.0)
    if not isinstance(adapter, PenalisedAdapter):
        return None
    own, layer = adapter.get_params(deep=False), IsotropyLayer(alpha=1.0)
    # Without a penalty, a balance only rescales the task loss, which hardly changes AdamW's steps.
    ignored = {"alpha", "balance", "smoothing", "bias_corrected"}
    shared = (own.keys() & layer.get_params(deep=False)) - ignored
    return layer.set_params(**{name: own[name] for name in shared})
