"""The figures of a replay, computed from its record. Seconds, tokens, LCM blocks; shares from 0 to 1."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.replay.engine import Engine
from kvplan.replay.flight import Flight
from kvplan.replay.statistics import Spread, counts_over_time, over_time, spread, weighted_percentile
from kvplan.replay.step_time import NS
from kvplan.replay.thrashing import Thrashing, thrashing
from kvplan.scheduler import CapacityModel, SchedulerConfig
from kvplan.scheduler.config import Role

BUCKETS = 20


@dataclass(frozen=True, slots=True)
class NeverFit:
    """A request that no empty pool could serve: what it needs (prompt + budget) is above the limit."""

    request_id: str
    needed_tokens: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests by how they ended. `limit_tokens` is the longest prompt + budget that the pool admits.

    `blocks_for_all` are the LCM blocks with which none would be too long, and `tokens_for_all` is the longest of
    those that now are: of the refused, and of those that came in undeclared and cannot end, with their whole
    output. None without any.
    """

    total: int
    finished: int
    never_fit: int
    unfinished: int
    not_arrived: int
    limit_tokens: int
    never_fit_requests: Sequence[NeverFit]
    blocks_for_all: int | None
    tokens_for_all: int | None = None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Where the KV of the admitted requests came from.

    Each position of a request counts once where it first came to be: `prompt_computed` by a prefill chunk or
    `prompt_from_cache` by a hit (they add up to `prompt` for finished requests), `generated` as output.
    After a retraction positions come back: `from_cache_again` by a hit, `computed_again` by a chunk.
    `refed_output` are generated tokens first computed by a readmission's chunk instead of a decode, and
    `replayed` the rows that a replayable group feeds again. All prefill is `prompt_computed + refed_output +
    computed_again + replayed`. `cache_rate` is `prompt_from_cache / (prompt_computed + prompt_from_cache)`,
    None when the trace does not say what its prompts share. `recomputed_share` is the part of all prefill
    that is `computed_again`.
    """

    prompt: int
    prompt_computed: int
    prompt_from_cache: int
    generated: int
    refed_output: int
    computed_again: int
    from_cache_again: int
    replayed: int
    prefill: int
    cache_rate: float | None
    recomputed_share: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, of finished requests; None without any.

    `first_token` and `end_to_end` count from the arrival; `per_output_token` is the time from the first
    token to the last over the tokens after the first, of requests with two tokens or more.
    """

    first_token_s: Spread | None
    per_output_token_s: Spread | None
    end_to_end_s: Spread | None


@dataclass(frozen=True, slots=True)
class PoolUse:
    """LCM blocks over time: *held* by live requests or transfers, *cached* (nothing but cache), *free*.

    Means are over time; the lists have one mean for each of 20 equal stretches of it.
    """

    blocks: int
    peak_held: int
    peak_used: int
    mean_held: float
    mean_cached: float
    mean_free: float
    held_over_time: list[float]
    cached_over_time: list[float]


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that wait without pages, as each plan leaves them; percentiles over time."""

    p50: int
    p90: int
    max: int
    mean: float
    waiting_over_time: list[float]
    max_running: int


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """Rounds by what their batch held; `skipped` of them repeat others exactly and were only counted."""

    total: int
    prefill: int
    decode: int
    mixed: int
    empty: int
    skipped: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class RetractionCounts:
    """Retractions: how many, of how many requests, in which state, when.

    `by_runtime` of them the runtime asked for, after a failed load or on purpose; all others made room.
    """

    count: int
    by_runtime: int
    requests: int
    worst_request: str | None
    worst_count: int
    by_state: dict[str, int]
    first_s: float | None
    last_s: float | None
    over_time: list[int]


@dataclass(frozen=True, slots=True)
class TierCounts:
    """What the host and storage tiers moved. `tokens_loaded` are prompt positions brought back instead of
    computed again; `saved_s` is the step time that computing them would have taken."""

    host_blocks: int
    pages_written: int
    pages_loaded: int
    pages_prefetched: int
    tokens_loaded: int
    saved_s: float
    loads_failed: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures of a replay. `duration_s` is from the first arrival to the last result."""

    duration_s: float
    requests: RequestCounts
    tokens: TokenCounts
    latency: Latency
    pool: PoolUse
    queue: Queue
    rounds: RoundCounts
    retractions: RetractionCounts
    thrashing: Thrashing | None
    output_tokens_per_s: float
    requests_per_s: float
    tiers: TierCounts | None = None


def summarize(engine: Engine, config: SchedulerConfig, has_prefixes: bool) -> Summary:
    """Return the figures of what `engine` has played with `config`."""
    flights = [*engine.finished, *engine.live.values()]
    end_ns = _end_ns(engine)
    duration_s = end_ns / NS
    tokens = _tokens(engine, flights, has_prefixes)
    finished = len(engine.finished)
    longest = _too_long(engine, config)
    return Summary(
        duration_s=duration_s,
        requests=RequestCounts(
            total=len(engine.workload),
            finished=finished,
            never_fit=len(engine.refused),
            unfinished=len(engine.live),
            not_arrived=len(engine.workload) - finished - len(engine.refused) - len(engine.live),
            limit_tokens=engine.limit_tokens,
            never_fit_requests=[
                NeverFit(flight.request_id, engine.needed_tokens(flight.row)) for flight in engine.refused
            ],
            blocks_for_all=None if longest is None else blocks_of(longest, config),
            tokens_for_all=longest,
        ),
        tokens=tokens,
        latency=_latency(engine.finished),
        pool=pool_use(engine, config.num_device_pages - 1, end_ns),
        queue=queue_of(engine, end_ns),
        rounds=round_counts(engine),
        retractions=_retractions(engine, flights, end_ns),
        thrashing=thrashing(engine.rounds),
        output_tokens_per_s=tokens.generated / duration_s if duration_s else 0.0,
        requests_per_s=finished / duration_s if duration_s else 0.0,
        tiers=tier_counts(engine, config),
    )


def tier_counts(engine: Engine, config: SchedulerConfig) -> TierCounts | None:
    """Return what an engine's host tier moved; None without one."""
    if not config.has_host_cache:
        return None
    totals = engine.totals
    return TierCounts(
        host_blocks=config.num_host_pages - 1,
        pages_written=totals.pages_written,
        pages_loaded=totals.pages_loaded,
        pages_prefetched=totals.pages_prefetched,
        tokens_loaded=totals.tokens_loaded,
        saved_s=totals.tokens_loaded * engine.step_time.per_prefill_token_s,
        loads_failed=totals.loads_failed,
    )


def tokens_for_all(
    engines: Sequence[Engine], refused: Sequence[Flight], config: SchedulerConfig
) -> int | None:
    """Return the tokens of the longest of `refused`, with all that it generates where the role decodes, on that of
    the engines where it needs most; None where nothing was refused."""
    return max((_whole(engine, flight, config) for flight in refused for engine in engines), default=None)


def blocks_of(request_tokens: int, config: SchedulerConfig) -> int:
    """Return the LCM blocks that one request of so many tokens needs (engine.md §3)."""
    model = CapacityModel(config)
    return model.lcm_blocks_needed_for(model.single_request_group_pages(request_tokens))


def _too_long(engine: Engine, config: SchedulerConfig) -> int | None:
    """Return the tokens of the longest request that the pool is too small for, refused or stuck in it."""
    stuck = [
        flight for flight in engine.live.values() if _whole(engine, flight, config) > engine.limit_tokens
    ]
    return tokens_for_all([engine], [*engine.refused, *stuck], config)


def _whole(engine: Engine, flight: Flight, config: SchedulerConfig) -> int:
    # A refusal counts what was declared; a pool for that alone would let the request in and never out.
    needed = engine.needed_tokens(flight.row)
    return needed if config.role is Role.P else max(needed, flight.prompt_tokens + flight.output_tokens)


def _end_ns(engine: Engine) -> int:
    """Return when the last step ended; rounds that only waited after it do not count."""
    steps = engine.rounds.column("step_ns")
    times = engine.rounds.column("time_ns")
    last_plan = next((i for i in range(len(steps) - 1, -1, -1) if steps[i]), None)
    ended = max((flight.finished_ns for flight in engine.finished), default=0)
    planned = times[last_plan] + steps[last_plan] if last_plan is not None else 0
    return max(ended, planned, times[-1] if len(times) and engine.live else 0)


def _tokens(engine: Engine, flights: Sequence[Flight], has_prefixes: bool) -> TokenCounts:
    computed = sum(flight.computed_prompt for flight in flights)
    cached = sum(flight.from_cache for flight in flights)
    refed = sum(flight.computed_output for flight in flights)
    again = sum(flight.computed_again for flight in flights)
    prefill = computed + refed + again + engine.totals.replayed_tokens
    known = computed + cached
    return TokenCounts(
        prompt=sum(flight.prompt_tokens for flight in flights),
        prompt_computed=computed,
        prompt_from_cache=cached,
        generated=sum(flight.generated for flight in flights),
        refed_output=refed,
        computed_again=again,
        from_cache_again=sum(flight.cache_again for flight in flights),
        replayed=engine.totals.replayed_tokens,
        prefill=prefill,
        cache_rate=(cached / known if known else 0.0) if has_prefixes else None,
        recomputed_share=again / prefill if prefill else 0.0,
    )


def _latency(finished: Sequence[Flight]) -> Latency:
    return Latency(
        first_token_s=spread([(f.first_token_ns - f.arrived_ns) / NS for f in finished]),
        per_output_token_s=spread(
            [
                (f.finished_ns - f.first_token_ns) / NS / (f.output_tokens - 1)
                for f in finished
                if f.output_tokens > 1
            ]
        ),
        end_to_end_s=spread([(f.finished_ns - f.arrived_ns) / NS for f in finished]),
    )


def pool_use(engine: Engine, blocks: int, end_ns: int) -> PoolUse:
    """Return how a pool of `blocks` usable LCM blocks was used until `end_ns`."""
    times = _column(engine, "time_ns")
    kept = times <= end_ns
    held, cached = _column(engine, "held_blocks"), _column(engine, "cached_blocks")
    free = _column(engine, "free_blocks")

    def mean(values: "np.ndarray[tuple[int], np.dtype[np.int64]]", buckets: int) -> list[float]:
        return over_time(times[kept], values[kept], end_ns, buckets)

    return PoolUse(
        blocks=blocks,
        peak_held=int(held.max(initial=0)),
        peak_used=int((held + cached).max(initial=0)),
        mean_held=mean(held, 1)[0],
        mean_cached=mean(cached, 1)[0],
        mean_free=mean(free, 1)[0],
        held_over_time=mean(held, BUCKETS),
        cached_over_time=mean(cached, BUCKETS),
    )


def queue_of(engine: Engine, end_ns: int) -> Queue:
    """Return how many requests waited until `end_ns`."""
    times = _column(engine, "time_ns")
    kept = times <= end_ns
    waiting = _column(engine, "waiting")
    lasts = np.diff(np.append(times[kept], max(end_ns, int(times[kept][-1])) if kept.any() else end_ns))
    timed = bool(lasts.sum())
    return Queue(
        p50=weighted_percentile(waiting[kept], lasts, 0.5) if timed else 0,
        p90=weighted_percentile(waiting[kept], lasts, 0.9) if timed else 0,
        max=int(waiting.max(initial=0)),
        mean=over_time(times[kept], waiting[kept], end_ns, 1)[0],
        waiting_over_time=over_time(times[kept], waiting[kept], end_ns, BUCKETS),
        max_running=int(_column(engine, "running").max(initial=0)),
    )


def _column(engine: Engine, name: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(engine.rounds.column(name), dtype=np.int64)


def round_counts(engine: Engine) -> RoundCounts:
    """Return the rounds that an engine played, by what they held."""
    kinds = engine.totals.rounds
    return RoundCounts(
        total=kinds.total(),
        prefill=kinds["prefill"],
        decode=kinds["decode"],
        mixed=kinds["mixed"],
        empty=kinds["empty"],
        skipped=engine.totals.skipped_rounds,
        busy_s=engine.totals.busy_ns / NS,
    )


def _retractions(engine: Engine, flights: Sequence[Flight], end_ns: int) -> RetractionCounts:
    hit = [flight for flight in flights if flight.retractions]
    worst = max(hit, key=lambda flight: (flight.retractions, -flight.row), default=None)
    log = engine.events
    times = [time for kind, time in zip(log.kinds, log.times_ns, strict=True) if kind == "retracted"]
    by_state = Counter(engine.totals.retractions)
    return RetractionCounts(
        count=by_state.total(),
        by_runtime=engine.totals.runtime_retractions,
        requests=len(hit),
        worst_request=worst.request_id if worst else None,
        worst_count=worst.retractions if worst else 0,
        by_state={state: by_state[state] for state in sorted(by_state)},
        first_s=times[0] / NS if times else None,
        last_s=times[-1] / NS if times else None,
        over_time=counts_over_time(times, end_ns, BUCKETS),
    )
