"""Fine-tuning of whole models, optionally with an isotropy penalty or with IsoBN."""

from typing import TYPE_CHECKING

from isoadapt._utils.imports import lazy_names

if TYPE_CHECKING:
    from isoadapt.finetune._classifier import finetune_text_classifier
    from isoadapt.finetune._isobn import IsoBNLayer, add_isobn
    from isoadapt.finetune._trainer import IsotropyTrainer

__all__ = ["IsoBNLayer", "IsotropyTrainer", "add_isobn", "finetune_text_classifier"]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every attribute
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "IsoBNLayer": "isoadapt.finetune._isobn",
            "IsotropyTrainer": "isoadapt.finetune._trainer",
            "add_isobn": "isoadapt.finetune._isobn",
            "finetune_text_classifier": "isoadapt.finetune._classifier",
        },
    )
