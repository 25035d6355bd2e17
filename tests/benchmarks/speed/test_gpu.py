"""The checks of `benchmarks.speed.gpu`, tried on the CPU."""

from benchmarks.speed import gpu
from benchmarks.speed._harness import Measurement


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
