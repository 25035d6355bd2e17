"""Encoders that sentence-transformers computes itself, because its modules are not known here."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.imports import import_optional
from isoadapt.encoders._backbone import eval_copy
from isoadapt.encoders._batching import PAIR
from isoadapt.encoders._folder import sentence_modules, transformer_folder
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._loading import checked_read, read_config, use_code, use_options
from isoadapt.encoders._models import (
    DTYPES,
    check_placed,
    in_memory,
    is_sentence_transformer,
    load_backbone,
    quiet,
    stored,
)
from isoadapt.encoders._pooling import EXPORTED, LIBRARY, Pooling
from isoadapt.encoders._sentence import live_pooling, sentence_pooling
from isoadapt.encoders._texts import Texts

READOUT_CODE = "isoadapt_readout.py"  # computes the vectors of a readout in a written folder
READOUT_KIND = READOUT_CODE.replace("py", "ReadoutTransformer")
READOUT_SOURCE = Path(__file__).with_name("_readout_module.py")
_BLOCK = 1024  # texts in one call of the library
_TOLERANCE = 1e-4  # difference that rounding gives, relative to the largest entry


@dataclass(frozen=True)
class LibraryEncoder:
    """A SentenceTransformer with the methods of Opened that need no part of a model."""

    model: Any
    shown: str  # how messages name it
    pooling = Pooling((LIBRARY,))

    @property
    def width(self) -> int:
        """Number of columns of the vectors."""
        return self.encode(Texts(["a"])).shape[1]

    def length(self, pairs: bool = False) -> int | None:
        """Return the number of tokens that inputs are truncated to; None if there is no limit."""
        length = self.model.max_seq_length
        return None if length is None or length == float("inf") else int(length)

    def encode(
        self, texts: Texts, progress: Callable[[int], Any] = lambda n_texts: None
    ) -> NDArray[np.float32]:
        """Compute the vectors (n, d) of all texts, repeated or not."""
        kinds = {type(module).__name__ for module in self.model}
        if texts.second is not None and READOUT_KIND.rpartition(".")[2] in kinds:
            raise ValueError(f"{self.shown} gives vectors of single texts, not of pairs")
        rows, blocks = texts.items(), []
        size = 1 if self._padding_changes_vectors() else 32
        for start in range(0, len(rows), _BLOCK):
            blocks.append(self._embed(rows[start : start + _BLOCK], size))
            progress(len(blocks[-1]))
        return np.concatenate(blocks)

    def _embed(self, rows: list[Any], batch_size: int) -> NDArray[np.float32]:
        """Compute the vectors (n, d) of rows by the library."""
        found = self.model.encode(rows, batch_size=batch_size, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    def _padding_changes_vectors(self) -> bool:
        """Return whether a text has another vector in a batch with a longer one."""
        alone, padded = (self._embed(PAIR.first, size) for size in (1, 2))
        return not np.allclose(alone, padded, rtol=0, atol=_TOLERANCE * np.abs(alone).max())

    def head(self, y: ArrayLike | None = None) -> None:
        """Return None, because there is no classifier head."""

    def describe(self) -> str:
        """Say in words how one vector is computed from a text."""
        modules = " + ".join(type(module).__name__ for module in self.model)
        return f"vectors of sentence-transformers ({modules})"

    def _refuse(self) -> Any:
        raise ValueError(
            f"{self.shown} has modules or settings that only sentence-transformers computes. It "
            "gives vectors, but no tokens and hidden states, and cannot be exported or merged. "
            "Choose pooling='cls', 'mean' or 'max' if its transformer alone will do"
        )

    backbone = tokens = equal_lengths = property(_refuse)


def open_library(source: Any, encoder: Any) -> LibraryEncoder | None:
    """Open a folder or live model if only sentence-transformers computes it; else return None."""
    live, code = is_sentence_transformer(source), encoder.trust_remote_code
    if encoder.pooling != EXPORTED:
        if not live and (not isinstance(source, Path) or holds_classifier(source)):
            return None
        if (live_pooling(source) if live else sentence_pooling(source)) != Pooling((LIBRARY,)):
            return None
    elif not holds_readout(source):
        return None
    layer, max_length = encoder.layer, encoder.max_length
    if layer != -1 or (live and max_length is not None):
        raise ValueError(
            f"layer={layer} and max_length={max_length} cannot be applied to a model that "
            "sentence-transformers computes: choose layer=-1, and set max_seq_length of the model"
        )
    if live:
        for weights in islice(source.parameters(), 1):
            check_placed(weights, encoder.device, encoder.dtype)
        return LibraryEncoder(eval_copy(source), "the live SentenceTransformer")
    settings = resolve_device(encoder.device), DTYPES[encoder.dtype], max_length, code
    model = stored(_load, source, *settings)
    return LibraryEncoder(model, f"model={str(source)!r}")


def _load(
    folder: Path, device: torch.device, dtype: torch.dtype, max_length: int | None, code: bool
) -> Any:
    """Load a folder by sentence-transformers, which imports other classes only if allowed."""
    library = import_optional("sentence_transformers", feature=f"model={str(folder)!r}", extra="st")
    is_readout = holds_readout(folder) and not code
    for kind, place in [] if is_readout else sentence_modules(folder):
        if "." in kind and not kind.startswith("sentence_transformers.") and not code:
            raise ValueError(
                f"model={str(folder)!r} has the module {kind}, whose code only runs with "
                "trust_remote_code=True"
            )
        if any(place.glob("*.bin")) and not any(place.glob("*.safetensors")):
            raise FileNotFoundError(f"{place} has weights in another format than safetensors")
    options = {"device": str(device)} | use_options(code)
    options["model_kwargs"] = {"dtype": dtype, "use_safetensors": True}

    def read() -> Any:
        if is_readout:
            return readout_model(folder, max_length, device=str(device))
        if code:
            use_code(transformer_folder(folder), "AutoModel")
        return library.SentenceTransformer(str(folder), **options)

    with quiet(), torch.random.fork_rng(devices=[]):
        model = in_memory(checked_read(folder, "modules", read).to(dtype).eval())
    if max_length is not None:
        model.max_seq_length = max_length
    return model


def holds_readout(folder: Any) -> bool:
    """Whether a folder holds an exported readout with its code."""
    return isinstance(folder, Path) and (folder / READOUT_CODE).is_file()


def readout_model(folder: Path, max_length: int | None = None, **options: Any) -> Any:
    """Load an exported readout by the code of this package, if the folder has the same code."""
    library = import_optional("sentence_transformers", feature=READOUT_CODE, extra="st")
    from isoadapt.encoders._readout_module import ReadoutTransformer

    if [kind for kind, _ in sentence_modules(folder)] != [READOUT_KIND]:
        raise ValueError(
            f"{folder / 'modules.json'} is not that of a readout alone: choose another pooling, or "
            "let sentence-transformers run the folder by trust_remote_code=True"
        )
    own, file = READOUT_SOURCE.read_bytes(), folder / READOUT_CODE
    if not file.is_file() or file.read_bytes() != own:
        raise ValueError(
            f"the folder's code is not the {READOUT_CODE} that this version of isoadapt writes: "
            "read it, and allow it to run by trust_remote_code=True (in isoadapt check, by "
            "--trust-remote-code), or export the readout again"
        )
    # As an encoder, the folder is checked first: its weights, configuration and tokenizer.
    place = torch.device("cpu")
    base = load_backbone(folder, holds_classifier(folder), torch.float32, place, code=False)
    if max_length and base.limit and max_length > base.limit:
        raise ValueError(f"max_length={max_length}, but the model has positions for {base.limit}")
    kwargs = {"config": read_config(folder), "use_safetensors": True}
    module = ReadoutTransformer.load(str(folder), local_files_only=True, model_kwargs=kwargs)
    if not all(values.isfinite().all() for values in module.state_dict().values()):
        raise ValueError(f"{folder} has weights that are NaN or infinite: export it again")
    return library.SentenceTransformer(modules=[module], **options)
