"""From hidden states to one vector a text, as sentence-transformers does it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HEAD_INPUT = "head_input"


@dataclass(frozen=True)
class Pooling:
    """How a vector is made: `modes` are joined; `max_length` and `lowercase` concern the text."""

    modes: tuple[str, ...]
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool hidden states (B, T, d) under a mask (B, T) of ones and zeros."""
        pooled = torch.cat([_MODES[mode](hidden, mask) for mode in self.modes], dim=1)
        return torch.nn.functional.normalize(pooled, dim=1) if self.normalize else pooled


def _sum(hidden: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("btd,bt->bd", hidden, weights.to(hidden.dtype))


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), mask.argmax(dim=1)]


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return _sum(hidden, mask) / mask.sum(dim=1, keepdim=True)


def _mean_sqrt(hidden: Tensor, mask: Tensor) -> Tensor:
    return _sum(hidden, mask) / mask.sum(dim=1, keepdim=True).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask * mask.cumsum(dim=1)
    return _sum(hidden, weights) / weights.sum(dim=1, keepdim=True)


_MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}
_LEGACY_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def transformer_folder(folder: Path) -> Path:
    """Give the folder of the transformer: a sentence-transformers folder may keep it further in.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    Path
        Where its ``config.json`` should be.
    """
    if (folder / "config.json").is_file():
        return folder
    modules = _modules(folder)
    return folder / modules[0]["path"] if modules else folder


def sentence_pooling(folder: Path) -> Pooling | None:
    """Read the pooling of a sentence-transformers folder; None if `folder` is not one.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    Pooling or None
        What its ``modules.json`` and the files that it names say.

    Raises
    ------
    ValueError
        If it has a module beyond Transformer, Pooling and Normalize, or puts a prompt before
        each text.
    """
    modules = _modules(folder)
    if modules is None:
        return None
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{folder / 'modules.json'} lists {', '.join(kinds)}: pooling='auto' knows "
            "Transformer, Pooling and Normalize; choose pooling='cls', 'mean' or 'max'"
        )
    texts = read_json(folder / "config_sentence_transformers.json", dict) or {}
    if texts.get("default_prompt_name"):
        raise ValueError(
            f"{folder} puts a prompt before each text, which pooling='auto' does not; choose "
            "pooling='cls', 'mean' or 'max' and pass texts that begin with the prompt"
        )
    transformer = folder / modules[0]["path"]
    settings = read_json(transformer / "sentence_bert_config.json", dict) or {}
    return Pooling(
        modes=_modes(read_json(folder / modules[1]["path"] / "config.json", dict) or {}),
        normalize=len(kinds) == 3,
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case")),
    )


def _modules(folder: Path) -> list[dict[str, str]] | None:
    """Modules of a sentence-transformers folder, each with a type and a path; None if it is not."""
    path = folder / "modules.json"
    modules = read_json(path, list)
    for module in modules or []:
        fields = module if isinstance(module, dict) else {}
        if not all(isinstance(fields.get(name), str) for name in ("type", "path")):
            raise ValueError(
                f"{path} is damaged (a module in it has no type or no path); copy it again"
            )
    return modules


def _modes(config: dict[str, Any]) -> tuple[str, ...]:
    modes = config.get("pooling_mode") or [
        mode for key, mode in _LEGACY_KEYS.items() if config.get(key)
    ]
    modes = (tuple(modes) or ("mean",)) if isinstance(modes, list) else (modes,)
    unknown = [mode for mode in modes if str(mode) not in _MODES]
    if unknown:
        raise ValueError(
            f"the checkpoint's pooling mode {unknown[0]!r} is not known (known: "
            f"{', '.join(_MODES)}); choose pooling='cls', 'mean' or 'max'"
        )
    return modes


def read_json(path: Path, kind: type) -> Any:
    """Read a JSON file.

    Parameters
    ----------
    path : Path
        The file.
    kind : {dict, list}
        What it must hold.

    Returns
    -------
    dict or list
        What it holds; None if there is no such file.

    Raises
    ------
    ValueError
        If it is not JSON or holds something else.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); copy it again") from error
    if not isinstance(content, kind):
        raise ValueError(
            f"{path} is damaged (it holds a {type(content).__name__}, not a {kind.__name__}); "
            "copy it again"
        )
    return content
