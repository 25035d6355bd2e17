"""Dead dimensions: one relative threshold for arrays and tensors."""

import numpy as np
import pytest
import torch

from isoadapt.geometry._spread import DEAD, dead_dimensions


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_dead_are_dimensions_of_no_more_than_a_share_of_the_total_variance(scale):
    variances = np.array([4.0, 0.0, 12.01 * DEAD, 11.99 * DEAD, 4.0, 4.0]) * scale
    dead = dead_dimensions(variances)  # the total is 12
    assert dead.tolist() == [False, True, False, True, False, False]
    found = dead_dimensions(torch.from_numpy(variances))
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == dead.tolist()
