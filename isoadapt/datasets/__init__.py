"""Labelled texts from files, the Hugging Face Hub and a generated corpus, and a small model."""

from isoadapt.datasets._acceptability._corpus import AcceptabilityCorpus, make_acceptability
from isoadapt.datasets._hub import load_hub
from isoadapt.datasets._matrices import load_matrix as load_matrix
from isoadapt.datasets._minilm import minilm_folder
from isoadapt.datasets._tables import load_table

__all__ = ["AcceptabilityCorpus", "load_hub", "load_table", "make_acceptability", "minilm_folder"]
