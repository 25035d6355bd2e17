"""Fine-tuning of whole models, optionally with an isotropy penalty or with IsoBN."""

from typing import TYPE_CHECKING, Any

from isoadapt._utils.optional import import_optional
from isoadapt.finetune._classifier import finetune_text_classifier
from isoadapt.finetune._isobn import IsoBNLayer, add_isobn

if TYPE_CHECKING:
    from isoadapt.finetune._trainer import IsotropyTrainer

from isoadapt.finetune._penalty import PENALTIES as PENALTIES, PLACES as PLACES
from isoadapt.finetune._recipes import RECIPES as RECIPES

__all__ = ["IsoBNLayer", "IsotropyTrainer", "add_isobn", "finetune_text_classifier"]


def __getattr__(name: str) -> Any:
    if name != "IsotropyTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_optional("accelerate", feature="IsotropyTrainer", extra="finetune")
    from isoadapt.finetune._trainer import IsotropyTrainer

    return IsotropyTrainer


def __dir__() -> list[str]:
    return sorted(__all__)
