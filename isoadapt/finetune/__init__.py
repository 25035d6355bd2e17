"""Fine-tuning: make the checkpoints that adapters then work on."""

from isoadapt.finetune._classifier import finetune_text_classifier

__all__ = ["finetune_text_classifier"]
