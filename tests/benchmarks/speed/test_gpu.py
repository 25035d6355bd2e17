"""The checks of `benchmarks.speed.gpu`, tried on a pretended GPU."""

import pytest
import torch

from benchmarks.speed import gpu
from benchmarks.speed._harness import Measurement
from isoadapt.encoders import release
from tests.pretended_cuda import UNAVAILABLE, pretended_cuda


@pytest.mark.slow
@pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)
@pytest.mark.parametrize("part", gpu.PARTS, ids=lambda part: part.__name__)
def test_each_part_runs_and_finds_the_devices_agree(part, checkpoint, monkeypatch):
    monkeypatch.setenv("ISOADAPT_MODEL", str(checkpoint))
    with pretended_cuda():
        assert list(part(torch.device("cuda"), True))
        release()


def test_a_part_that_fails_does_not_keep_the_others_from_running(monkeypatch, capsys):
    def broken(device, quick):
        gpu.agree("sums", 1.0, 1.1, 0.01)

    def sound(device, quick):
        yield Measurement(f"sound on {device.type}, quick={quick}", (1.0,))

    monkeypatch.setattr(gpu, "PARTS", (broken, sound))
    assert gpu.main(["--device", "cpu", "--quick"]) == 1
    output = capsys.readouterr()
    assert "sound on cpu, quick=True" in output.out
    assert "sums: the devices differ by 0.1" in output.err
    assert "failed: broken" in output.err
