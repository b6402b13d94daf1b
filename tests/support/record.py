"""What a round is compared by: its plan and the counters after it, as plain JSON data."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from kvplan.scheduler import Cache, ExecutionPlan, KVEvent, Scheduler
from kvplan.scheduler.plan import Batch

Record = dict[str, Any]


def digest(values: Iterable[Any]) -> str:
    """A short fingerprint of a list."""
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()[:12]


def batch_record(batch: Batch) -> Record:
    """One batch."""
    return {
        "requests": list(batch.request_ids),
        "slots": list(batch.request_pool_indices),
        "inputs": list(batch.input_lengths),
        "prefill": list(batch.prefill_lengths),
        "extends": batch.num_extends(),
        "prefix": list(batch.extend_prefix_lens),
        "replay": list(batch.extend_replay_lens),
        "ids": digest(batch.input_ids),
        "shifted": digest(batch.shifted_input_ids),
        "decode_ids": list(batch.decode_input_ids),
        "tables": tables_of(batch),
    }


def tables_of(batch: Batch) -> dict[str, list[list[int]]]:
    """A batch's block tables without their padding."""
    return {
        group: [[page for page in row if page >= 0] for row in rows]
        for group, rows in batch.block_tables.items()
    }


def cache_record(op: Cache.WriteBackOp | Cache.LoadBackOp) -> Record:
    """One tier transfer."""
    record: Record = {
        "kind": "write_back" if isinstance(op, Cache.WriteBackOp) else "load_back",
        "ops": list(op.op_ids),
        "groups": [list(row) for row in op.group_ids],
        "src": [list(row) for row in op.src_pages],
        "dst": [list(row) for row in op.dst_pages],
        "offsets": [list(row) for row in op.page_offsets],
    }
    if isinstance(op, Cache.WriteBackOp):
        record["pinned"] = [bool(pinned) for pinned in op.source_pinned]
    else:
        record["l3"] = [[bool(fill) for fill in row] for row in op.prefetch_from_storage]
    return record


def plan_record(plan: ExecutionPlan) -> Record:
    """A plan; parts that are empty are left out."""
    record: Record = {}
    for batch in plan.forward:
        if batch.request_ids:
            record["forward"] = batch_record(batch)
    if plan.remote_prefill is not None:
        record["remote_prefill"] = batch_record(plan.remote_prefill)
    if plan.remote_decode is not None:
        record["remote_decode"] = batch_record(plan.remote_decode)
    if plan.cache:
        record["cache"] = [cache_record(op) for op in plan.cache]
    zero = {group: list(pages) for group, pages in plan.pages_to_zero.items() if pages}
    if zero:
        record["zero"] = zero
    return record


def counters(scheduler: Scheduler, group_ids: Iterable[str]) -> list[int]:
    """The counters after a round."""
    return [
        scheduler.waiting_size(),
        scheduler.prefilling_size(),
        scheduler.decoding_size(),
        scheduler.available_lcm_blocks(),
        scheduler.empty_lcm_blocks(),
        scheduler.active_lcm_blocks(),
        *(scheduler.cache_group_available_pages(group) for group in group_ids),
    ]


def extras_record(scheduler: Scheduler) -> Record:
    """Cache events, counts and waiting hashes after a round."""
    return {
        "kv": [event_row(event) for event in scheduler.drain_kv_events()],
        "counts": [
            scheduler.bootstrapping_size(),
            scheduler.remote_prefilling_size(),
            scheduler.pd_transfer_size(),
            int(scheduler.can_clear_cache()),
        ],
        "waiting": digest(scheduler.waiting_prefix_hashes()),
    }


def event_row(event: KVEvent.BlockStored | KVEvent.BlockRemoved) -> list[Any]:
    """One cache event."""
    row: list[Any] = [event.kind, list(event.block_hashes)]
    if isinstance(event, KVEvent.BlockStored):
        row += [event.parent_block_hash, digest(event.token_ids), event.block_size]
    return row


def shrunk(record: Record) -> Record:
    """The same record with block tables and page lists as length and fingerprint."""
    for name in ("forward", "remote_prefill", "remote_decode"):
        if name in record:
            tables = record[name]["tables"]
            record[name]["tables"] = {
                group: [[len(row), digest(row)] for row in rows] for group, rows in tables.items()
            }
    if "zero" in record:
        record["zero"] = {group: [len(pages), digest(pages)] for group, pages in record["zero"].items()}
    return record
