"""Random requests for a deployment that has no trace: of every length, sharing prefixes, more than fit at once."""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from kvplan.replay.workload import Workload
from kvplan.scheduler import CapacityModel, SchedulerConfig

PREFIXES = 8  # shared beginnings, of which most requests have one
NS = 1_000_000_000


def random_workload(config: SchedulerConfig, count: int, seed: int = 0) -> Workload:
    """``count`` requests that ``config`` admits; the same seed gives the same ones.

    Prompts are up to four chunks long (or what one request may have), every length scale as often as every
    other; most begin with the beginning of another. Arrivals come in bursts, so that requests meet.
    """
    rng = Random(seed)
    limit = CapacityModel(config).max_single_request_tokens(config.num_device_pages - 1)
    width = max(config.decode_input_tokens, 1)
    longest = min(limit - width, max(4 * config.max_scheduled_tokens, 64 * config.prefix_granularity))
    if longest < 1:
        raise ValueError(f"the pool admits requests of at most {limit} tokens; it is too small for any")
    shared = [_tokens(seed, -1 - at, longest) for at in range(PREFIXES)]
    prompts, outputs, budgets, arrivals = [], [], [], []
    now = 0
    for at in range(count):
        length = max(1, round(longest ** rng.random()))
        common = rng.randint(0, length) if rng.random() < 0.8 else 0
        own = _tokens(seed, at, length - common)
        prompts.append(np.concatenate((shared[rng.randrange(PREFIXES)][:common], own)))
        output = min(rng.choice((1, 4, 32, 128)), limit - length)
        outputs.append(max(output, 1))
        # A budget that is not declared is what lets requests grow into each other.
        budgets.append(outputs[-1] if rng.random() < 0.3 else 0)
        now += 0 if rng.random() < 0.7 else rng.randint(0, NS)
        arrivals.append(now)
    return Workload(
        request_ids=[f"r{at}" for at in range(count)],
        prompt_tokens=[len(prompt) for prompt in prompts],
        output_tokens=outputs,
        budgets=budgets,
        arrivals_ns=arrivals,
        delays_ns=[None] * count,
        after=[None] * count,
        prompt=lambda row: prompts[row],
        output=lambda row: _tokens(seed, -1_000_000 - row, outputs[row]).tolist(),
    )


def _tokens(seed: int, row: int, count: int) -> NDArray[np.int32]:
    generator = np.random.default_rng((seed, row + 2**40))
    return generator.integers(0, 50_000, count, np.int32)
