"""Texts with labels: a generated corpus and files; and a small model to try them on."""

from isoadapt.datasets._acceptability import AcceptabilityCorpus, make_acceptability
from isoadapt.datasets._minilm import minilm_folder
from isoadapt.datasets._tables import load_table

__all__ = ["AcceptabilityCorpus", "load_table", "make_acceptability", "minilm_folder"]
