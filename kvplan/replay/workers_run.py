"""The tables of a replay through prefill and decode workers."""

from __future__ import annotations

import polars as pl

from kvplan.replay.disaggregated import Disaggregated
from kvplan.replay.run import in_seconds, seconds

HAND_OFF_TIMES = ("arrived_s", "ready_s", "landing_s", "begin_s", "end_s", "first_token_s", "finished_s")


def workers_tables(replay: Disaggregated) -> dict[str, pl.DataFrame]:
    """Return the tables by name: `requests` (a row for each request of the trace, with its hand-off), `rounds` and
    `events` of all workers, each row with its `worker`. Times in seconds, null = not come."""
    named = [
        *((f"prefill {at}", worker) for at, worker in enumerate(replay.prefill)),
        *((f"decode {at}", worker) for at, worker in enumerate(replay.decode)),
    ]
    rounds = [in_seconds(worker.rounds.table()).with_columns(worker=pl.lit(name)) for name, worker in named]
    events = [in_seconds(worker.events.table()).with_columns(worker=pl.lit(name)) for name, worker in named]
    return {"requests": requests_table(replay), "rounds": pl.concat(rounds), "events": pl.concat(events)}


def requests_table(replay: Disaggregated) -> pl.DataFrame:
    """Return a row for each request of the trace, in its order. `status` is finished, never fits, unfinished or
    not arrived; the hand-off's times are those of `HandOff`."""
    ends = replay.decode or replay.prefill
    flights = {flight.row: flight for worker in ends for flight in (*worker.finished, *worker.live.values())}
    refused = {flight.row for flight in replay.refused}
    finished = {flight.row for flight in replay.finished}
    rows: list[dict[str, object]] = []
    for row, name in enumerate(replay.workload.request_ids):
        flight, hand = flights.get(row), replay.hand_offs.get(name)
        status = "unfinished" if hand is not None else "not arrived"
        if row in refused:
            status = "never fits"
        elif row in finished:
            status = "finished"
        rows.append(
            {
                "request_id": name,
                "status": status,
                "prefill_worker": hand.prefill_worker if hand and hand.prefill_worker >= 0 else None,
                "decode_worker": hand.decode_worker if hand and hand.decode_worker >= 0 else None,
                "arrived_s": seconds(hand.arrived_ns) if hand else None,
                "ready_s": seconds(hand.ready_ns) if hand else None,
                "landing_s": seconds(hand.landing_ns) if hand else None,
                "begin_s": seconds(hand.begin_ns) if hand else None,
                "end_s": seconds(hand.end_ns) if hand else None,
                "first_token_s": seconds(flight.first_token_ns) if flight else None,
                "finished_s": seconds(flight.finished_ns) if flight else None,
                "prompt_tokens": replay.workload.prompt_tokens[row],
                "output_tokens": replay.workload.output_tokens[row],
                "generated_tokens": flight.generated if flight else 0,
                "landed_pages": hand.landed_pages if hand else 0,
                "pinned_pages": hand.pinned_pages if hand else 0,
                "retractions": flight.retractions if flight else 0,
            }
        )
    workers = dict.fromkeys(("prefill_worker", "decode_worker"), pl.Int64)
    times = dict.fromkeys(HAND_OFF_TIMES, pl.Float64)
    return pl.DataFrame(rows, schema_overrides={**workers, **times}, infer_schema_length=1)
