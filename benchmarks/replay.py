#!/usr/bin/env python3
"""How fast a replay is: a trace of the Mooncake form through one engine with a full-history group.

    python benchmarks/replay.py mooncake_conversation.jsonl.gz [--limit 400] [--host-pages 50000]

P = 64, 12,500 LCM blocks of one page, chunk 8192, batch 256, mixed, decode width 1, no host tier; each request
declares its output's length; arrivals by timestamp; a step of 10 ms + 35 µs per prefill token + 20 µs per
decode request. Everything is timed: reading the trace, the replay, its figures and tables. One process, one
thread. `--host-pages` adds a host tier of so many pages, whose transfers take no time; `--json` prints the
figures for a program.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path


def processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """Return the most memory that the process had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> int:
    """Run the benchmark and print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace", nargs="+", help="the trace's files")
    parser.add_argument("--limit", type=int, help="requests (all)")
    parser.add_argument("--host-pages", type=int, default=0, help="usable pages of a host tier (none)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = "1"  # before anything imports Polars

    from kvplan.replay.replay import replay
    from kvplan.replay.step_time import StepTime
    from kvplan.scheduler import CacheGroupConfig, SchedulerConfig
    from kvplan.traces import TraceError, read_trace

    config = SchedulerConfig()
    config.prefix_granularity = 64
    config.max_scheduled_tokens = 8_192
    config.max_batch_size = 256
    config.enable_mixed_prefill_decode = True
    config.num_device_pages = 12_501
    config.num_host_pages = arguments.host_pages + 1
    config.cache_groups = [CacheGroupConfig("full", 64, 12_501)]

    begun = time.process_time()
    try:
        trace = read_trace(arguments.trace, limit=arguments.limit)
    except (TraceError, OSError) as error:
        print(f"benchmarks/replay.py: {error}", file=sys.stderr)
        return 2
    read = time.process_time()
    run = replay(trace, config, step_time=StepTime(0.010, 35e-6, 20e-6), max_new_tokens="output")
    done = time.process_time()

    figures = run.summary.figures
    took = done - begun
    result = {
        "requests": len(trace),
        "prompt_tokens": figures.tokens.prompt,
        "prefill_tokens": figures.tokens.prefill,
        "generated_tokens": figures.tokens.generated,
        "host_pages": arguments.host_pages,
        "host_pages_written": figures.tiers.pages_written if figures.tiers else 0,
        "rounds": figures.rounds.total,
        "ending": run.summary.ending.value,
        "cpu_s": took,
        "cpu_read_s": read - begun,
        "requests_per_s": len(trace) / took,
        "rounds_per_s": figures.rounds.total / took,
        "decode_steps_per_s": figures.tokens.generated / took,
        "peak_bytes": peak_bytes(),
        "processor": processor(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{result['requests']:,} requests, {result['prompt_tokens']:,} prompt tokens, {result['ending']}")
    print(f"  rounds        {result['rounds']:,}")
    if arguments.host_pages:
        print(f"  host tier     {result['host_pages_written']:,} pages written")
    print(f"  CPU           {took:.2f} s, {read - begun:.2f} s of it to read the trace")
    print(f"  requests/s    {result['requests_per_s']:,.0f}")
    print(f"  rounds/s      {result['rounds_per_s']:,.0f}")
    print(f"  decodes/s     {result['decode_steps_per_s']:,.0f}")
    print(f"  peak memory   {peak_bytes() / 2**20:,.0f} MiB")
    print(f"  on            {result['processor']}; {result['python']}; {result['system']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
