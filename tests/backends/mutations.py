"""What a broken scheduler or runtime would do to one plan, at a random place. Each says whether it found one."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from kvplan.backends.errors import Violation
from kvplan.scheduler import Cache, ExecutionPlan
from kvplan.scheduler.config import CacheGroupConfig, GroupKind
from kvplan.scheduler.plan import Batch
from tests.backends.carrying import CarriedRun
from tests.backends.small import play
from tests.support.scenario import Scenario

Mutation = Callable[[ExecutionPlan, CarriedRun, Random], bool]


def _of(run: CarriedRun, *kinds: GroupKind) -> list[CacheGroupConfig]:
    return [group for group in run.config.cache_groups if group.kind in kinds]


def _batches(plan: ExecutionPlan) -> Iterator[Batch]:
    yield from plan.forward
    if plan.remote_prefill is not None:
        yield plan.remote_prefill


def _needed(batch: Batch, at: int, run: CarriedRun, group: CacheGroupConfig) -> list[int]:
    """The slots that a request's job reads in a full group: those of its tokens computed before."""
    name = batch.request_ids[at]
    if at < batch.num_extends():
        computed = batch.extend_prefix_lens[at] + batch.extend_replay_lens[at]
    else:
        computed = run.backend.roll.history(name).length - 1
    return list(range(computed // group.block_granularity))


def swap_two_pages(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    for batch in plan.forward:
        for at in range(len(batch.request_ids)):
            for group in _of(run, GroupKind.FULL):
                slots = _needed(batch, at, run, group)
                if len(slots) > 1:
                    one, other = rng.sample(slots, 2)
                    row = batch.block_tables[group.group_id][at]
                    row[one], row[other] = row[other], row[one]
                    return True
    return False


def one_page_in_two_slots(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    for batch in plan.forward:
        for at in range(len(batch.request_ids)):
            for group in _of(run, GroupKind.FULL):
                slots = _needed(batch, at, run, group)
                if len(slots) > 1:
                    one, other = rng.sample(slots, 2)
                    row = batch.block_tables[group.group_id][at]
                    row[one] = row[other]
                    return True
    return False


def another_s_page(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """The page of a slot that is read, taken of another request of the batch, which has something else there."""
    for batch in plan.forward:
        for group in _of(run, GroupKind.FULL):
            table = batch.block_tables[group.group_id]
            rows = [run.backend.roll.history(name).rows(group.group_id) for name in batch.request_ids]
            g = group.block_granularity
            for at in range(len(batch.request_ids)):
                for other in range(len(batch.request_ids)):
                    moved = [
                        slot
                        for slot in _needed(batch, at, run, group)
                        if slot < len(table[other])
                        and table[other][slot] > 0
                        and list(rows[at][slot * g : slot * g + g])
                        != list(rows[other][slot * g : slot * g + g])
                    ]
                    if moved:
                        slot = rng.choice(moved)
                        table[at][slot] = table[other][slot]
                        return True
    return False


def skip_zeroing(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """Of a page that the plan writes first, and that still holds something."""
    full = [group.group_id for group in _of(run, GroupKind.FULL)]
    first: set[tuple[str, int]] = set()
    for batch in _batches(plan):
        for group_id in full:
            for at, row in enumerate(batch.block_tables[group_id]):
                if at < batch.num_extends() or batch is plan.remote_prefill:
                    begin = batch.extend_prefix_lens[at] + batch.extend_replay_lens[at]
                    end = batch.extend_prefix_lens[at] + batch.input_lengths[at]
                    g = next(
                        one.block_granularity for one in run.config.cache_groups if one.group_id == group_id
                    )
                    first |= {(group_id, row[slot]) for slot in range(-(-begin // g), -(-end // g))}
    there = [(group, page) for group, pages in plan.pages_to_zero.items() for page in pages]
    index = run.group_ids.index
    chosen = [one for one in there if one in first and run.backend.arena.page(index(one[0]), one[1]).any()]
    if chosen:
        group, page = rng.choice(chosen)
        plan.pages_to_zero[group].remove(page)
    return bool(chosen)


def zero_a_page_in_use(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    for batch in plan.forward:
        for at in range(len(batch.request_ids)):
            for group in _of(run, GroupKind.FULL):
                slots = _needed(batch, at, run, group)
                page = batch.block_tables[group.group_id][at][rng.choice(slots)] if slots else 0
                if page and page not in _filled(plan):  # those that a load-back fills are zeroed before
                    plan.pages_to_zero.setdefault(group.group_id, []).append(page)
                    return True
    return False


def drop_a_page_of_the_window(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """The oldest page of a sliding group that a decode still reads, reclaimed one page early."""
    for batch in plan.forward:
        for at in range(batch.num_extends(), len(batch.request_ids)):
            for group in _of(run, GroupKind.SLIDING):
                begin = run.backend.roll.history(batch.request_ids[at]).length - 1
                low = max(begin - (group.sliding_window_tokens or 0) + 1, 0) // group.block_granularity
                if low < begin // group.block_granularity:
                    batch.block_tables[group.group_id][at][low] = 0
                    return True
    return False


def state_of_another_slot(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """Off by one in the checkpoint: a state is continued from the page of the slot before."""
    for batch in plan.forward:
        for at in range(len(batch.request_ids)):
            for group in _of(run, GroupKind.STATE):
                name = batch.request_ids[at]
                begin = run.backend.roll.history(name).length - 1
                if at < batch.num_extends():
                    begin = batch.extend_prefix_lens[at] + batch.extend_replay_lens[at]
                slot = (begin - 1) // group.block_granularity
                row = batch.block_tables[group.group_id][at]
                if begin > 0 and slot > 0:
                    row[slot] = row[slot - 1]
                    return True
    return False


def chunk_one_row_late(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """A wrong row offset: the first row of a chunk is left out."""
    for batch in plan.forward:
        for at in range(batch.num_extends() if _of(run, GroupKind.FULL) else 0):
            if batch.input_lengths[at] - batch.extend_replay_lens[at] > 1:
                batch.extend_prefix_lens[at] += 1
                batch.input_lengths[at] -= 1
                return True
    return False


def replay_into_the_hit(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """Replayed rows are written as if they were computed for the first time."""
    for batch in plan.forward:
        for at in range(batch.num_extends()):
            if batch.extend_replay_lens[at]:
                batch.extend_replay_lens[at] = 0
                return True
    return False


def _ops(plan: ExecutionPlan, kind: type[Any]) -> list[Any]:
    return [op for op in plan.cache if isinstance(op, kind)]


def _filled(plan: ExecutionPlan) -> set[int]:
    return {page for op in _ops(plan, Cache.LoadBackOp) for pages in op.dst_pages for page in pages}


def _swapped(plan: ExecutionPlan, run: CarriedRun, kind: type[Any], column: str, rng: Random) -> bool:
    """Swap two pages of one group in a column of an operation; of a load-back two of a full group that the plan's
    forward reads, which storage has no part in."""
    loads = kind is Cache.LoadBackOp
    for op in _ops(plan, kind):
        for at, groups in enumerate(op.group_ids):
            usable = list(range(len(groups)))
            if loads:
                usable = [
                    pair
                    for pair in usable
                    if run.config.cache_groups[groups[pair]].kind == GroupKind.FULL
                    and not op.prefetch_from_storage[at][pair]
                    and any(
                        op.dst_pages[at][pair] in row
                        for batch in plan.forward
                        for row in batch.block_tables[run.group_ids[groups[pair]]]
                    )
                ]
            pairs = [
                (one, other)
                for one in usable
                for other in usable
                if other < one and groups[one] == groups[other]
            ]
            if pairs:
                one, other = rng.choice(pairs)
                pages = list(getattr(op, column)[at])
                pages[one], pages[other] = pages[other], pages[one]
                getattr(op, column)[at] = pages
                return True
    return False


def load_back_to_another_page(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    return _swapped(plan, run, Cache.LoadBackOp, "dst_pages", rng)


def load_back_from_another_page(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    return _swapped(plan, run, Cache.LoadBackOp, "src_pages", rng)


def store_of_another_page(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    return _swapped(plan, run, Cache.WriteBackOp, "src_pages", rng)


def store_to_another_page(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    return _swapped(plan, run, Cache.WriteBackOp, "dst_pages", rng)


def forget_a_load_back(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    found = _ops(plan, Cache.LoadBackOp)
    for op in found:
        plan.cache.remove(op)
    return bool(found)


def landing_behind_a_longer_hit(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    """A stale landing: the peer is told of a page more than is there, and leaves it out."""
    batch = plan.remote_prefill
    if batch is None or not _of(run, GroupKind.FULL):
        return False
    for at in range(len(batch.request_ids)):
        longer = batch.extend_prefix_lens[at] + run.config.prefix_granularity
        if longer < batch.prefill_lengths[at]:
            batch.extend_prefix_lens[at] = longer
            return True
    return False


def landing_in_swapped_pages(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    batch = plan.remote_prefill
    for group in _of(run, GroupKind.FULL) if batch is not None else ():
        assert batch is not None
        for at, row in enumerate(batch.block_tables[group.group_id]):
            first = -(-batch.extend_prefix_lens[at] // group.block_granularity)
            whole = batch.prefill_lengths[at] // group.block_granularity
            if whole - first > 1:
                row[first], row[first + 1] = row[first + 1], row[first]
                return True
    return False


def send_of_another_page(plan: ExecutionPlan, run: CarriedRun, rng: Random) -> bool:
    batch = plan.remote_decode
    for group in _of(run, GroupKind.FULL) if batch is not None else ():
        assert batch is not None
        for at, row in enumerate(batch.block_tables[group.group_id]):
            if batch.prefill_lengths[at] > group.block_granularity:
                row[0], row[1] = row[1], row[0]
                return True
    return False


MUTATIONS: list[Mutation] = [
    swap_two_pages,
    one_page_in_two_slots,
    another_s_page,
    skip_zeroing,
    zero_a_page_in_use,
    drop_a_page_of_the_window,
    state_of_another_slot,
    chunk_one_row_late,
    replay_into_the_hit,
    load_back_to_another_page,
    load_back_from_another_page,
    store_of_another_page,
    store_to_another_page,
    forget_a_load_back,
    landing_behind_a_longer_hit,
    landing_in_swapped_pages,
    send_of_another_page,
]


def _lost(plan: ExecutionPlan, run: CarriedRun) -> bool:
    """Whether a load of the plan fails, so that nothing of it is computed."""
    return any(op_id in run.failing_loads for op in _ops(plan, Cache.LoadBackOp) for op_id in op.op_ids)


def mutated(
    one: Scenario, mutation: Mutation, rng: Random, wait: int | None = None
) -> tuple[int | None, Violation | None]:
    """Play a scenario whose plan is changed once, in a round from ``wait`` on (absent: 0 to 5); in which round that
    was, and the violation."""
    done: int | None = None
    first = rng.randrange(6) if wait is None else wait

    def change(plan: ExecutionPlan, run: CarriedRun) -> None:
        nonlocal done
        if done is not None or run.backend.counts.rounds < first or _lost(plan, run):
            return
        if mutation(plan, run, rng):
            done = run.backend.counts.rounds

    try:
        play(one, change, copy_delay=rng.choice((None, 0, 1)))
    except Violation as error:
        return done, error
    return done, None
