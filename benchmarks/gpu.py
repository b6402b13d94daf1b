#!/usr/bin/env python3
"""What the torch backend does on a device, in one call of a few minutes: the figures that the README holds.

    python benchmarks/gpu.py --output figures.json                 on the first GPU
    python benchmarks/gpu.py --device cpu --output figures.json    the same, of small sizes, in seconds

Six parts, the long ones with a limit of time: bandwidths of zeroing and copies; the LCM blocks of a model that
allocation finds; that model's memory at its real size, its plans carried out; recorded scenarios; a soak of 10,000
rounds in 40 GiB beside a pinned host tier; and what carrying plans out costs a replay. A part that fails says why
and the others go on. The table goes to stdout; the exit status is 1 if a part failed, a plan was not safe or the
soak's allocated bytes have grown.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvplan.backends.allocator import allocator_report
from kvplan.backends.backend import Backend
from kvplan.backends.bandwidth import measure_device
from kvplan.backends.carried import CarriedScheduler
from kvplan.backends.check import check_plan, check_scenario
from kvplan.backends.device_file import KINDS, Cost
from kvplan.backends.errors import BackendError
from kvplan.backends.fit import blocks_fit, left_out
from kvplan.backends.layout import Field, GroupSpec
from kvplan.backends.memory import Memory
from kvplan.backends.random_workload import random_workload
from kvplan.backends.recorded import Request, Scenario, read_scenario
from kvplan.backends.recorded_run import RecordedRun, RecordedScript
from kvplan.backends.torch_module import device_named, device_title, load_torch
from kvplan.recipes import plan_memory
from kvplan.replay.accept import parse_accept
from kvplan.replay.session import begin
from kvplan.traces import read_trace

GIB = 2**30
ROOT = Path(__file__).parents[1]
MODEL = "llama-3.1-8b"
TRACE = ROOT / "examples" / "traces" / "shared_prefixes.jsonl"

Figures = dict[str, Any]


def bandwidths(device: str, gpu: bool) -> Figures:
    """Zeroing and copies by size; the rate of the largest and what a small one takes beyond it."""
    sizes = [1 << power for power in range(16, 31 if gpu else 23, 2)]
    costs = measure_device(device, sizes, repeats=20 if gpu else 3)
    found: Figures = {"basis": costs.basis}
    for kind in KINDS:
        samples = getattr(costs, kind)
        found[kind] = asdict(Cost.of(samples)) | {"samples": [[one.bytes, one.seconds] for one in samples]}
    return found


def blocks(device: str, gpu: bool) -> Figures:
    """The LCM blocks of a model that fit beside what size-pool leaves out, and those that it promised."""
    torch = load_torch()
    if gpu:
        total = torch.cuda.mem_get_info(device_named(device))[1]
        plan = plan_memory(MODEL, gpu_memory_gib=total / GIB, max_context_len=32768)
        beside = left_out(plan)
    else:
        plan = plan_memory(MODEL, cache_gib=1, max_context_len=32768)
        beside = 0
    fit = blocks_fit(device, plan.stage.block_bytes, plan.usable_blocks, beside)
    return {
        "model": MODEL,
        "block_bytes": fit.block_bytes,
        "beside_bytes": beside,
        "found": fit.found,
        "promised": fit.promised,
        "ok": fit.fits,
    }


def real_size(device: str, gpu: bool) -> Figures:
    """A model's memory, as large as the device has room for, with random requests carried out in it."""
    torch = load_torch()
    room = torch.cuda.mem_get_info(device_named(device))[0] * 0.8 if gpu else GIB
    plan = plan_memory(MODEL, cache_gib=room / GIB, max_context_len=32768, max_num_seqs=16)
    memory = Memory.planned(plan)
    if not gpu:
        memory = memory.fitting(plan.config, 1 << 26)
    config = plan.config
    workload = random_workload(config, 60 if gpu else 4, 1)
    started = time.perf_counter()
    result = check_plan(
        workload,
        config,
        parse_accept(None, 1, 0),
        memory=memory,
        device=device,
        max_rounds=300 if gpu else 40,
    )
    return {
        "model": MODEL,
        "layout": result.memory_layout,
        "arena_bytes": result.arena_bytes,
        "safe": result.safe,
        "violation": None if result.violation is None else str(result.violation),
        "counts": asdict(result.counts),
        "before": asdict(result.before),
        "after": asdict(result.after),
        "seconds": time.perf_counter() - started,
        "ok": result.safe,
    }


def recordings(device: str, gpu: bool, limit_s: float) -> Figures:
    """The engine's own runs, acks as the device copies: as many as the time allows, evenly chosen."""
    paths = sorted((ROOT / "tests" / "recordings").glob("*.json.gz"))
    chosen = [paths[at] for step in range(7) for at in range(step, len(paths), 7)] if gpu else paths[::40]
    started = time.perf_counter()
    played, rounds, unsafe = 0, 0, []
    for path in chosen:
        if time.perf_counter() - started > limit_s:
            break
        result = check_scenario(read_scenario(path), device=device)
        played += 1
        rounds += result.counts.rounds
        if result.violation is not None:
            unsafe.append(f"{path.name}: {result.violation}")
    return {
        "played": played,
        "of": len(paths),
        "rounds": rounds,
        "unsafe": unsafe,
        "seconds": time.perf_counter() - started,
        "ok": bool(played) and not unsafe,
    }


def soak_scenario(rounds: int, arena_blocks: int, host_blocks: int) -> Scenario:
    """Requests that come for ``rounds`` rounds and fill the pool many times over. Most of them begin with what only
    the host still has of an earlier one, so that pages go both ways."""
    every = 34
    requests = [
        Request(f"r{at}", [(at % 6, 0, 704), (100 + at, 0, 16)], 64, submit=every * at)
        for at in range(rounds // every)
    ]
    config = {
        "prefix_granularity": 4,
        "num_device_pages": arena_blocks + 1,
        "num_host_pages": host_blocks + 1,
        "max_scheduled_tokens": 512,
        "max_batch_size": 2,
        "enable_mixed_prefill_decode": True,
        "cache_groups": [{"group_id": "full", "block_granularity": 4, "total_pages": arena_blocks + 1}],
    }
    return Scenario(config, requests, max_rounds=rounds)


def soak(device: str, gpu: bool, rounds: int, limit_s: float) -> Figures:
    """Many rounds in one arena, and what the allocator says of it every hundred of them."""
    arena_bytes = 40 * GIB if gpu else 1 << 24
    blocks, host = 1024, 1280
    scenario = soak_scenario(rounds, blocks, host)
    memory = Memory([GroupSpec("full", 4, 1, (Field("kv", arena_bytes // blocks // 4),))])
    config, script = scenario.scheduler_config(), RecordedScript(scenario)
    where = device_named(device)
    before = allocator_report(where)
    backend = Backend(config, script, device=device, memory=memory)
    scheduler = CarriedScheduler(config, backend)
    run = RecordedRun(scenario, scheduler, script, backend.settled)
    allocated: list[int | None] = []
    started = time.perf_counter()
    last = started

    def watch() -> bool:
        nonlocal last
        if backend.counts.rounds % 100 == 99:
            allocated.append(allocator_report(where).allocated)
        last = time.perf_counter()
        return last - started < limit_s

    ending = run.play(go_on=watch)
    counts = backend.counts
    after = allocator_report(where)
    steady = set(allocated[1:])
    return {
        "arena_bytes": backend.arena.layout.bytes,
        "host_bytes": 0 if backend.host is None else backend.host.layout.bytes,
        "rounds": counts.rounds,
        "wanted_rounds": rounds,
        "ending": ending,
        "seconds": last - started,
        "allocated_bytes": sorted(steady) if None not in steady else None,
        "fragmentation": after.fragmentation,
        "counts": asdict(counts),
        "before": asdict(before),
        "after": asdict(after),
        "ok": len(steady) == 1 and counts.rounds >= rounds - 200,
    }


def overhead(device: str, gpu: bool) -> Figures:
    """A replay with nobody, and with the device, carrying its plans out: seconds a round."""
    from kvplan.backends.carried import carried_scheduler

    plan = plan_memory(MODEL, cache_gib=4, max_context_len=32768, max_num_seqs=16)
    config, memory = plan.config, Memory.planned(plan)
    if not gpu:
        memory = memory.fitting(config, 1 << 26)
    trace = read_trace([str(TRACE)], limit=120 if gpu else 8)
    found: Figures = {}
    for name in ("none", "torch"):
        session = begin(
            trace,
            config,
            accept=parse_accept(None, 1, 0),
            concurrency=16 if gpu else 4,
            scheduler_of=None
            if name == "none"
            else lambda made, workload, accept: carried_scheduler(
                made, workload, accept, device=device, memory=memory
            ),
        )
        started = time.perf_counter()
        session.play(1000 if gpu else 100)
        seconds = time.perf_counter() - started
        rounds = session.engine.round_index
        found[name] = {"seconds": seconds, "rounds": rounds, "seconds_per_round": seconds / rounds}
    return found


def table(figures: Figures) -> str:
    """The figures as the README's table."""
    rows = [f"| {figures['device']} | |", "| --- | --- |"]
    parts = figures["parts"]
    copies = parts.get("bandwidths", {})
    for kind, words in (
        ("zeroing", "zeroing"),
        ("write_back", "to the host"),
        ("load_back", "from the host"),
    ):
        if kind in copies:
            one = copies[kind]
            rows.append(
                f"| {words} | {one['bytes_per_s'] / 1e9:,.1f} GB/s, {one['latency_s'] * 1e6:,.1f} µs |"
            )
    fit = parts.get("blocks", {})
    if "found" in fit:
        rows.append(
            f"| LCM blocks of {fit['model']} | {fit['found']:,} found, {fit['promised']:,} promised |"
        )
    real = parts.get("real_size", {})
    if "arena_bytes" in real:
        verdict = "safe" if real["safe"] else "NOT SAFE"
        rows.append(
            f"| {real['model']} in {real['arena_bytes'] / GIB:,.1f} GiB ({real['layout']}) | {verdict}: "
            f"{real['counts']['rows_read']:,} rows read in {real['counts']['rounds']:,} rounds |"
        )
    played = parts.get("recordings", {})
    if "played" in played:
        rows.append(
            f"| recordings | {played['played']} of {played['of']} played, {len(played['unsafe'])} not safe |"
        )
    long = parts.get("soak", {})
    if "rounds" in long:
        allocated = long["allocated_bytes"]
        if allocated is None:
            said = "not told on a CPU"
        else:
            said = f"{len(allocated)} value(s){'' if not allocated else f', {allocated[-1]:,} at most'}"
        rows.append(
            f"| {long['rounds']:,} rounds in {long['arena_bytes'] / GIB:,.2f} GiB | {long['seconds']:,.0f} s; "
            f"allocated bytes: {said} |"
        )
    cost = parts.get("overhead", {})
    if "torch" in cost:
        none, torch = (cost[name]["seconds_per_round"] * 1e3 for name in ("none", "torch"))
        rows.append(f"| a round of a replay | {none:.2f} ms, carried out {torch:.2f} ms |")
    rows += [f"| {name} failed | {part['error']} |" for name, part in parts.items() if "error" in part]
    return "\n".join(rows)


def measured(part: Callable[[], Figures]) -> Figures:
    """The part's figures with its seconds, or why there are none."""
    started = time.perf_counter()
    try:
        found = part()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}", "ok": False}
    return found | {"took_s": time.perf_counter() - started}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the file to write (JSON)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, help="rounds of the soak [10,000; on a CPU 400]")
    given = parser.parse_args()
    device = given.device
    try:
        torch, where = load_torch(), device_named(device)
        given.output.touch()
    except (BackendError, OSError) as error:
        parser.error(str(error))
    gpu = where.type == "cuda"
    rounds = given.rounds or (10_000 if gpu else 400)
    figures: Figures = {
        "device": device_title(where),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "parts": {},
    }
    parts: dict[str, Callable[[], Figures]] = {
        "bandwidths": lambda: bandwidths(device, gpu),
        "blocks": lambda: blocks(device, gpu),
        "soak": lambda: soak(device, gpu, rounds, 150),
        "real_size": lambda: real_size(device, gpu),
        "overhead": lambda: overhead(device, gpu),
        "recordings": lambda: recordings(device, gpu, 60),
    }
    for name, part in parts.items():
        found = figures["parts"][name] = measured(part)
        print(f"{name}: {found['took_s']:.1f} s", file=sys.stderr)
        given.output.write_text(json.dumps(figures, indent=1) + "\n")  # what there is, should time run out
        gc.collect()  # the part's arenas, before the next one takes as much as there is
        if gpu:
            torch.cuda.empty_cache()
            torch.accelerator.empty_host_cache()  # pinned memory, which is rounded up to a power of two
    print(table(figures))
    return 0 if all(part.get("ok", True) for part in figures["parts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
