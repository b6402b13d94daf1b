"""How long zeroing and copies between device and host take on a device, by size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from kvplan.backends.device_file import DeviceCosts, Sample
from kvplan.backends.torch_module import device_named, device_title, load_torch, one_thread

SIZES = tuple(1 << power for power in range(16, 29, 2))  # 64 KiB to 256 MiB
REPEATS = 7


def measure_device(name: str, sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> DeviceCosts:
    """Measure a device: the median of ``repeats`` runs of each size in bytes, after one that is not counted.

    Raises ``BackendError`` without torch or the device.
    """
    with one_thread():
        return _measure(device_named(name), sizes, repeats)


def _measure(device: Any, sizes: Sequence[int], repeats: int) -> DeviceCosts:
    torch = load_torch()
    gpu = device.type == "cuda"
    largest = max(sizes)
    on_device = torch.empty(largest, dtype=torch.uint8, device=device)
    on_host = torch.zeros(largest, dtype=torch.uint8, pin_memory=gpu)
    on_device.zero_()  # so that no first touch of a page is measured
    clock = _cuda_seconds if gpu else _cpu_seconds
    zeroing: list[Sample] = []
    write_back: list[Sample] = []
    load_back: list[Sample] = []
    for size in sizes:
        there, here = on_device[:size], on_host[:size]
        for samples, work in (
            (zeroing, there.zero_),
            (write_back, lambda a=there, b=here: b.copy_(a, non_blocking=True)),
            (load_back, lambda a=there, b=here: a.copy_(b, non_blocking=True)),
        ):
            clock(torch, device, work)
            seconds = median(clock(torch, device, work) for _ in range(repeats))
            samples.append(Sample(size, seconds))
    basis = (
        "measured with CUDA events, host memory pinned"
        if gpu
        else "memory copies of this machine's CPU: no device was measured"
    )
    return DeviceCosts(str(device), device_title(device), basis, zeroing, write_back, load_back)


def _cuda_seconds(torch: Any, device: Any, work: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _cpu_seconds(torch: Any, device: Any, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
