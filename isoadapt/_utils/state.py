"""The state of the process around a call, on which results must not depend."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from sklearn import config_context, get_config

from isoadapt._utils.threads import SharedSetting

_SKLEARN: dict[str, Any] = {"transform_output": "default", "array_api_dispatch": False}


@contextmanager
def _float32() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_FLOAT32 = SharedSetting(_float32)  # all threads have one default


@contextmanager
def own_state(outputs: bool = True, models: bool = False) -> Iterator[None]:
    """Compute as in a new process, whatever the caller has set; it also decorates functions."""
    with ExitStack() as states:
        if torch.is_inference_mode_enabled():
            states.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            states.enter_context(torch.enable_grad())
        states.enter_context(np.errstate(all="warn", under="ignore"))
        if outputs and _SKLEARN.items() - get_config().items():  # inner estimators return arrays
            states.enter_context(config_context(**_SKLEARN))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                states.enter_context(torch.autocast(device, enabled=False))
        if models:  # whose code may depend on the default of all threads
            states.enter_context(_FLOAT32.hold())
        if torch.get_default_device().type != "cpu":
            states.enter_context(torch.device("cpu"))
        yield
