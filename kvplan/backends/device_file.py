"""What was measured of a device, as a file (TOML) that a replay can take its transfer times from."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("zeroing", "write_back", "load_back")


@dataclass(frozen=True, slots=True)
class Sample:
    """How long so many bytes took."""

    bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """The rate of this size, whatever part of it is latency."""
        return self.bytes / self.seconds


@dataclass(frozen=True, slots=True)
class Cost:
    """Time = ``latency_s`` + bytes / ``bytes_per_s``."""

    latency_s: float
    bytes_per_s: float

    @staticmethod
    def of(samples: Sequence[Sample]) -> Cost:
        """The rate of the largest size, where latency plays hardly a part, and what the smallest takes beyond
        it."""
        by_size = sorted(samples, key=lambda sample: sample.bytes)
        smallest, rate = by_size[0], by_size[-1].bytes_per_s
        return Cost(max(smallest.seconds - smallest.bytes / rate, 0.0), rate)


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Measured times of one device: zeroing, device to host (write-back), host to device (load-back)."""

    device: str
    title: str
    basis: str
    zeroing: Sequence[Sample]
    write_back: Sequence[Sample]
    load_back: Sequence[Sample]

    def to_toml(self) -> str:
        """The file's text: per kind latency and rate, and the samples that they come from."""
        lines = [
            f"# What kvplan measure-device measured: {self.basis}.",
            f"device = {json.dumps(self.device)}",
            f"title = {json.dumps(self.title)}",
            f"basis = {json.dumps(self.basis)}",
        ]
        for kind in KINDS:
            samples: Sequence[Sample] = getattr(self, kind)
            cost = Cost.of(samples)
            rows = ", ".join(f"[{sample.bytes}, {sample.seconds:.3e}]" for sample in samples)
            lines += [
                "",
                f"[{kind}]",
                f"latency_s = {cost.latency_s:.3e}",
                f"bytes_per_s = {cost.bytes_per_s:.4e}",
                f"samples = [{rows}]  # bytes, seconds",
            ]
        return "\n".join(lines) + "\n"


def load_costs(path: Path) -> dict[str, Cost]:
    """The costs of a device file: keys zeroing, write_back, load_back.

    Raises ``ValueError``, one sentence, for a file that is not one.
    """
    try:
        document = tomllib.loads(path.read_text())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    costs = {}
    for kind in KINDS:
        table = document.get(kind)
        if not isinstance(table, dict):
            raise ValueError(f"{path}: [{kind}] is missing; a file of kvplan measure-device is expected")
        latency = _number(path, kind, table, "latency_s", 0.0)
        costs[kind] = Cost(latency, _number(path, kind, table, "bytes_per_s", 1.0))
    return costs


def _number(path: Path, kind: str, table: dict[str, object], name: str, least: float) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise ValueError(f"{path}: [{kind}] {name} is {value!r}; a number of at least {least:g} is needed")
    return float(value)
