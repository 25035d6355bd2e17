"""What all losses require of the points."""

import numpy as np
import pytest
import torch

from isoadapt.losses import (
    CosRegLoss,
    IsoScoreLoss,
    PersistentEntropyLoss,
    SpectrumControlLoss,
)


@pytest.mark.parametrize(
    "loss", [CosRegLoss(), IsoScoreLoss(), PersistentEntropyLoss(), SpectrumControlLoss()], ids=str
)
@pytest.mark.parametrize("Z", [torch.zeros(()), torch.zeros(5), np.zeros((6, 5))], ids=type)
def test_points_must_be_a_tensor_of_rows(loss, Z):
    with pytest.raises(ValueError, match=r"it must be a tensor of shape \(\.\.\., n, d\)"):
        loss(Z)
