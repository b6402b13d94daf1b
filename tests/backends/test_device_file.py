"""A device file: latency and rate of each kind, and nothing else is one."""

from pathlib import Path

import pytest

from kvplan.backends.device_file import Cost, DeviceCosts, Sample, load_costs

SAMPLES = [Sample(1_000_000, 2e-4), Sample(100_000_000, 1.01e-2)]


def test_a_cost_is_the_rate_of_large_sizes_and_the_latency_of_small_ones() -> None:
    cost = Cost.of(SAMPLES)
    assert cost.bytes_per_s == pytest.approx(1e8 / 1.01e-2)
    assert cost.latency_s == pytest.approx(2e-4 - 1e6 / cost.bytes_per_s)


def test_a_file_that_was_written_is_read_to_the_same_costs(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text(DeviceCosts("cpu", "a cpu", "made up", SAMPLES, SAMPLES, SAMPLES).to_toml())
    costs = load_costs(path)
    assert list(costs) == ["zeroing", "write_back", "load_back"]
    assert costs["load_back"].bytes_per_s == pytest.approx(Cost.of(SAMPLES).bytes_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("=", "not TOML"),
        ("x = 1", r"\[zeroing\] is missing"),
        ("[zeroing]\nlatency_s = 0", r"\[zeroing\] bytes_per_s is None; a number of at least 1 is needed"),
        ("[zeroing]\nlatency_s = -1", r"\[zeroing\] latency_s is -1; a number of at least 0 is needed"),
        ("[zeroing]\nlatency_s = nan", r"latency_s is nan"),
    ],
)
def test_what_is_no_device_file_is_told_with_its_field(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_costs(path)
