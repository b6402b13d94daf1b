"""Whether requests that a pool was sized for do finish in it: they are played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvplan.replay.accept import parse_accept
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.dead_end import DeadEnd
from kvplan.replay.engine import Engine
from kvplan.replay.play import Progress, play
from kvplan.replay.step_time import unit_rounds
from kvplan.replay.transfers import loaded_group
from kvplan.replay.workload import Workload
from kvplan.scheduler import CapacityModel, Scheduler, SchedulerConfig
from kvplan.scheduler.journal import Attempt, Journal

MOST_TOKENS = 2**26  # of all prompts together, which are in memory at once
MOST_BLOCKS = 20_000_000  # the accounts of so many take about 4 GB


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of ``requests`` requests of ``prompt_tokens`` and ``output_tokens``, submitted together.

    Each declared its output. ``most_at_once`` is the most that held pages at the same time, ``last_start_round``
    the round in which the last one's first chunk was computed. ``waited`` are those that were ever refused pages,
    ``longest_wait_rounds`` the most rounds in which one was: None in a pool below the engine's demand, where
    they have to. ``dead_end`` is why some never finish, None if all did.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    usable_blocks: int
    finished: int
    never_fit: int
    retractions: int
    most_at_once: int
    last_start_round: int
    waited: int | None
    longest_wait_rounds: int | None
    rounds: int
    dead_end: DeadEnd | None

    @property
    def holds(self) -> bool:
        """Whether all finished and none was retracted."""
        return self.finished == self.requests and not self.retractions


def prove(
    config: SchedulerConfig,
    max_context_len: int,
    output_tokens: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Proof:
    """Play ``config.max_batch_size`` requests of ``max_context_len`` tokens, submitted together to an empty pool.

    Of these ``output_tokens`` are generated (None: 256, or a half where that is less). No two prompts have a
    token in common. ``config`` must have a pool; ``progress`` is told now and then how far it is. Raises
    ``ValueError`` for what cannot be played.
    """
    width, requests = config.decode_input_tokens, config.max_batch_size
    output = max(min(256, max_context_len // 2), width) if output_tokens is None else output_tokens
    if config.role is not SchedulerConfig.Role.Fused:
        raise ValueError(f"role {config.role.name} is given; one engine of role Fused can be played")
    if not width <= output < max_context_len:
        raise ValueError(
            f"output_tokens is {output}; {width} (a decode step) to {max_context_len - 1} are possible of "
            f"max_context_len {max_context_len}"
        )
    prompt = max_context_len - output
    if requests * prompt > MOST_TOKENS:
        raise ValueError(
            f"{requests} prompts of {prompt} tokens are too many to play; at most {MOST_TOKENS} tokens are "
            "possible in all"
        )
    if config.num_device_pages > MOST_BLOCKS:
        raise ValueError(
            f"the pool has {config.num_device_pages} LCM blocks; at most {MOST_BLOCKS} can be played"
        )
    scheduler = Scheduler(config)
    capacity = CapacityModel(config)
    pages = capacity.concurrent_group_pages(requests * max_context_len, max_context_len)
    if capacity.lcm_blocks_needed_for(pages) < config.num_device_pages:
        # A journal has every request tried in every round, which takes minutes where most of them wait.
        scheduler.journal = Journal()
    engine = Engine(
        scheduler=scheduler,
        workload=_workload(requests, prompt, output),
        step_time=unit_rounds(),
        accept=parse_accept(None, width),
        decode_width=width,
        overlap=config.overlap_schedule_depth,
        loaded_group=loaded_group(config),
    )
    refusals: Counter[str] = Counter()

    def after_round() -> bool:
        journal = scheduler.journal
        if journal is not None and journal.round is not None:
            refusals.update(
                {
                    entry.request_id
                    for entry in journal.round.entries
                    if isinstance(entry, Attempt) and entry.outcome == "no_capacity"
                }
            )
        return False

    _, dead_end = play(engine, Arrivals(engine.workload), progress=progress, stop=after_round)
    if dead_end is not None:
        after_round()  # the round that ended it is not asked about
    events = zip(engine.events.rounds, engine.events.kinds, strict=True)
    return Proof(
        requests=requests,
        prompt_tokens=prompt,
        output_tokens=output,
        usable_blocks=config.num_device_pages - 1,
        finished=len(engine.finished),
        never_fit=len(engine.refused),
        retractions=engine.totals.retractions.total(),
        most_at_once=max(engine.rounds.column("running"), default=0),
        last_start_round=max((at for at, kind in events if kind == "admitted"), default=0),
        waited=None if scheduler.journal is None else len(refusals),
        longest_wait_rounds=None if scheduler.journal is None else max(refusals.values(), default=0),
        rounds=engine.round_index,
        dead_end=dead_end,
    )


def _workload(requests: int, prompt: int, output: int) -> Workload:
    return Workload(
        request_ids=[f"r{row}" for row in range(requests)],
        prompt_tokens=[prompt] * requests,
        output_tokens=[output] * requests,
        budgets=[output] * requests,
        arrivals_ns=[0] * requests,
        delays_ns=[None] * requests,
        after=[None] * requests,
        prompt=lambda row: np.arange(row * prompt, (row + 1) * prompt, dtype=np.int32),
        output=lambda row: [row] * output,
    )
