"""The design note's invariants (section 5), each over the same few hundred random scenarios.

The scenarios are played once; what is checked is what an engine sees: the plans, what was out when they were
made, and the retractions that went with them.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.observe import Observed, Round, batch_rows, digests_by_pages, observed
from tests.support.scenarios import ROLES, TIERS

PLACES = [(role, tier) for role in ROLES for tier in TIERS]
each_place = pytest.mark.parametrize(("role", "tier"), PLACES)
SAFE_STEPS = 4096


def runs(role: str, tier: str) -> Iterator[Observed]:
    for seed in range(45):
        yield observed(seed, role, tier)


def kind_of(group: Any) -> str:
    return str(group.kind.name).lower()


def policy(round_: Round) -> list[Any]:
    """The round's retractions that were for capacity."""
    return [retraction for retraction in round_.retractions if retraction.for_request is not None]


def note_snapshot(with_snapshot: set[str], retraction: Any) -> None:
    if retraction.has_snapshot:
        with_snapshot.add(retraction.request_id)
    else:
        with_snapshot.discard(retraction.request_id)


@each_place
def test_a_chunk_is_granted_its_own_pages_and_its_reserve_by_retention_and_no_more(
    role: str, tier: str
) -> None:
    """Every table ends exactly where the chunk does plus the decode slot of a completing chunk (full and
    sliding), the growth block of one (state), or the headroom of a first chunk (full only)."""
    checked = 0
    for seen in runs(role, tier):
        config = seen.run.config
        width, prefill_only = config.decode_input_tokens, role == "P"
        retractions: dict[str, int] = defaultdict(int)
        slots: dict[tuple[str, str], int] = {}
        for at, round_ in enumerate(seen.rounds):
            # Retractions of the runtime come before the plan, those for capacity within it, before the grant.
            for retraction in round_.retractions:
                retractions[retraction.request_id] += 1
                for group in config.cache_groups:
                    slots.pop((retraction.request_id, group.group_id), None)
            rows = [*batch_rows(round_.record, "forward"), *batch_rows(round_.record, "remote_prefill")]
            for row in rows:
                if not row["extend"]:
                    continue
                request = seen.run.requests[row["id"]]
                completes = row["end"] == row["prefill"]
                generated = row["prefill"] - len(seen.run.prompts[row["id"]])
                left = max(0, request["max_new_tokens"] - generated) if request["max_new_tokens"] else 0
                headroom = 0 if prefill_only else min(left, SAFE_STEPS * (1 + retractions[row["id"]]))
                for group in config.cache_groups:
                    g = group.block_granularity
                    before = slots.get((row["id"], group.group_id))
                    reserve = width if completes else 0
                    if kind_of(group) == "state":
                        reserve = max(g, width) if completes and not prefill_only else 0
                    elif kind_of(group) == "full" and before is None and headroom:
                        reserve = max(reserve, row["prefill"] - row["end"] + headroom)
                    wanted = max(before or 0, -(-(row["end"] + reserve) // g))
                    got = len(row["tables"][group.group_id])
                    assert got == wanted, f"{seen.name} round {at}: {row['id']} {group.group_id}"
                    slots[row["id"], group.group_id] = got
                    checked += 1
    assert checked > 500


@each_place
def test_a_replayable_group_is_never_matched_published_or_streamed(role: str, tier: str) -> None:
    replays = 0
    for seen in runs(role, tier):
        config = seen.run.config
        replayable = {at for at, group in enumerate(config.cache_groups) if group.replayable}
        window = config.replay_window
        started: set[str] = set()
        for round_ in seen.rounds:
            assert not any(round_.device[group] for group in replayable)
            for op in round_.record.get("cache", ()):
                assert not replayable & {group for row in op["groups"] for group in row}
            started -= {retraction.request_id for retraction in round_.retractions}
            for row in batch_rows(round_.record, "forward"):
                if not row["extend"]:
                    continue
                hit = row["prefix"] + row["replay"]
                # Only a hit's first chunk feeds the window again, and all of it.
                expected = min(window, hit) if row["id"] not in started else 0
                assert row["replay"] == expected
                size = row["inputs"] - row["replay"]
                if row["end"] == row["prefill"] and row["id"] in started:
                    assert size >= window, "a final chunk shorter than the replay window"
                started.add(row["id"])
                replays += row["replay"] > 0
    assert replays or role == "D"


@each_place
def test_replayed_rows_cost_budget_but_are_no_progress(role: str, tier: str) -> None:
    for seen in runs(role, tier):
        ends: dict[str, int] = {}
        width = seen.run.config.decode_input_tokens
        for round_ in seen.rounds:
            for retraction in round_.retractions:
                ends.pop(retraction.request_id, None)
            cost = 0
            for row in batch_rows(round_.record, "forward"):
                cost += row["inputs"] if row["extend"] else 0 if role == "D" else width
                if row["extend"]:
                    begin = row["prefix"] + row["replay"]
                    assert ends.get(row["id"], begin) == begin, (
                        "the next chunk starts where the last one ended"
                    )
                    ends[row["id"]] = row["end"]
            assert cost <= seen.run.config.max_scheduled_tokens


@each_place
def test_an_incomplete_local_prefill_is_not_overtaken(role: str, tier: str) -> None:
    """At most one prefill of a round is incomplete, and it is the last; no newcomer starts beside a resident
    one that got nothing."""
    stalled = 0
    for seen in runs(role, tier):
        for at, round_ in enumerate(seen.rounds):
            prefills = [row for row in batch_rows(round_.record, "forward") if row["extend"]]
            incomplete = [row["end"] < row["prefill"] for row in prefills]
            assert not any(incomplete[:-1]), f"{seen.name} round {at}"
            residents = [rid for rid, state in round_.states.items() if state == "Prefilling"]
            served = {row["id"] for row in prefills}
            waiting = [rid for rid in residents if rid not in served]
            if waiting and not round_.retractions:
                newcomers = [rid for rid in served if round_.states[rid] == "Submitted"]
                assert not newcomers, f"{seen.name} round {at}: {newcomers} overtook {waiting}"
                stalled += 1
    assert stalled or role == "D"


@each_place
def test_retraction_fires_only_when_no_prefill_progressed(role: str, tier: str) -> None:
    """Whatever is prefilled in a round of retraction is the grant itself."""
    rounds = 0
    for seen in runs(role, tier):
        for round_ in seen.rounds:
            if not policy(round_):
                continue
            rounds += 1
            started = [row["id"] for row in batch_rows(round_.record, "forward") if row["extend"]]
            started += [row["id"] for row in batch_rows(round_.record, "remote_prefill")]
            assert len(started) <= 1
            victims = {retraction.request_id for retraction in policy(round_)}
            assert not victims & set(started)
    assert (rounds > 0) == (role != "P")


@each_place
def test_a_prefill_worker_never_retracts_for_capacity(role: str, tier: str) -> None:
    retracted = sum(len(policy(round_)) for seen in runs(role, tier) for round_ in seen.rounds)
    assert (retracted == 0) == (role == "P")


@each_place
def test_a_victim_is_quiescent(role: str, tier: str) -> None:
    """No forward of its own is out, no PD transfer works on its pages."""
    for seen in runs(role, tier):
        for at, round_ in enumerate(seen.rounds):
            decoded = {row["id"] for row in batch_rows(round_.record, "forward")}
            for retraction in policy(round_):
                assert retraction.request_id not in round_.results_out, f"{seen.name} round {at}"
                assert retraction.request_id not in decoded, f"{seen.name} round {at}"
                assert retraction.state in ("Prefilling", "PrefillDone", "Decoding")


@each_place
def test_a_load_back_or_a_pinned_store_in_flight_defers_all_retraction(role: str, tier: str) -> None:
    deferred = 0
    for seen in runs(role, tier):
        for round_ in seen.rounds:
            if round_.load_pages or round_.pinned_sources:
                assert not policy(round_)
                deferred += 1
    assert deferred or tier == "device" or role == "D"


@each_place
def test_freed_capacity_goes_to_the_request_it_was_freed_for_in_the_same_plan(role: str, tier: str) -> None:
    granted = 0
    for seen in runs(role, tier):
        mixed = seen.run.config.enable_mixed_prefill_decode and role == "Fused"
        batch_size = seen.run.config.max_batch_size
        for at, round_ in enumerate(seen.rounds):
            retractions = policy(round_)
            if not retractions:
                continue
            grant = retractions[-1].for_request
            rows = [*batch_rows(round_.record, "forward"), *batch_rows(round_.record, "remote_prefill")]
            if any(row["id"] == grant for row in rows):
                granted += 1
                continue
            decodes = [row for row in rows if not row["extend"]]
            if grant in {retraction.request_id for retraction in retractions}:
                continue  # the victim was the blocker: another prompt may have been granted, or none waits
            if decodes and not mixed:
                continue  # the round's grammar does not admit a prefill beside them
            if len(rows) >= batch_size:
                continue
            # Otherwise there was nobody left to retract, or somebody who had to be waited for.
            gone = {retraction.request_id for retraction in retractions}
            busy = round_.results_out | {row["id"] for row in rows}
            quiet = [
                rid
                for rid, state in round_.states.items()
                if state in ("Prefilling", "PrefillDone", "Decoding")
                and rid not in gone | busy
                and not seen.run.requests[rid]["max_new_tokens"]
            ]
            assert not quiet or busy, f"{seen.name} round {at}: {grant} not granted, {quiet} left"
    assert granted or role == "P"


@each_place
def test_only_a_retraction_s_store_is_stream_ordered(role: str, tier: str) -> None:
    """Every other one pins its device pages until the ack; a stream-ordered one comes before those."""
    stream_ordered = 0
    for seen in runs(role, tier):
        for round_ in seen.rounds:
            ops = [op for op in round_.record.get("cache", ()) if op["kind"] == "write_back"]
            pinned = [flag for op in ops for flag in op["pinned"]]
            assert pinned.count(False) <= len(policy(round_))
            stream_ordered += pinned.count(False)
            if not policy(round_):
                assert all(pinned)
    assert (stream_ordered > 0) == (tier != "device" and role != "P")


@each_place
def test_pages_of_a_pinned_store_or_a_load_go_to_nobody_until_the_ack(role: str, tier: str) -> None:
    transfers = 0
    for seen in runs(role, tier):
        index = {group.group_id: at for at, group in enumerate(seen.run.config.cache_groups)}
        for round_ in seen.rounds:
            out = round_.pinned_sources | round_.load_pages
            transfers += len(out)
            fresh = {
                (index[group], page)
                for group, pages in round_.record.get("zero", {}).items()
                for page in pages
            }
            assert not fresh & out
            still = {(at, page) for at, pages in enumerate(round_.device) for page in pages.values()}
            if "cleared" not in round_.record:
                assert round_.pinned_sources <= still, "a page was evicted while a store reads it"
    assert (transfers > 0) == (tier != "device") or role == "D"


@each_place
def test_only_computed_tokens_are_published(role: str, tier: str) -> None:
    """The index never has a prefix page that no request had computed, or hit, before the round."""
    published = 0
    for seen in runs(role, tier):
        run = seen.run
        frontier: dict[str, int] = defaultdict(int)
        computed: set[bytes] = set()
        for at, round_ in enumerate(seen.rounds):
            for rid, state in round_.states.items():
                if state in ("Decoding", "PrefillDone"):
                    frontier[rid] = max(frontier[rid], round_.prefill_sizes[rid] - 1)
            for rid, tokens in frontier.items():
                computed |= digests_by_pages(run, rid, tokens)
            rows = [*batch_rows(round_.record, "forward"), *batch_rows(round_.record, "remote_prefill")]
            for row in rows:
                if row[
                    "extend"
                ]:  # what lies before its chunk is cached; the chunk itself comes after the plan
                    computed |= digests_by_pages(run, row["id"], row["prefix"] + row["replay"])
            for pages in round_.device:
                digests = {key[:32] for key in pages}
                assert digests <= computed, f"{seen.name} round {at}"
                published += len(digests)
            for row in rows:
                if row["extend"]:
                    frontier[row["id"]] = max(frontier[row["id"]], row["end"])
            # A finish publishes all tokens but the last, between the plans.
            for rid in round_.states:
                if rid not in run.live:
                    frontier[rid] = max(frontier[rid], len(run.tokens(rid)) - 1)
    assert published > 100


@each_place
def test_at_most_one_readmission_is_admitted_a_round(role: str, tier: str) -> None:
    readmitted = 0
    for seen in runs(role, tier):
        with_snapshot: set[str] = set()
        for round_ in seen.rounds:
            started = [
                row["id"]
                for row in batch_rows(round_.record, "forward")
                if row["extend"] and round_.states[row["id"]] == "Retracted" and row["id"] in with_snapshot
            ]
            assert len(started) <= 1
            readmitted += len(started)
            for retraction in round_.retractions:
                note_snapshot(with_snapshot, retraction)
    assert (readmitted > 0) == (role == "D" or (role == "Fused" and tier != "device"))


@each_place
def test_a_readmission_that_does_not_fit_waits_and_never_triggers_retraction(role: str, tier: str) -> None:
    waited = 0
    for seen in runs(role, tier):
        with_snapshot: set[str] = set()
        for round_ in seen.rounds:
            waiting = {rid for rid in with_snapshot if round_.states.get(rid) == "Retracted"}
            waited += len(waiting)
            for retraction in policy(round_):
                assert retraction.for_request not in waiting
            for retraction in round_.retractions:
                note_snapshot(with_snapshot, retraction)
    assert (waited > 0) == (role == "D" or (role == "Fused" and tier != "device"))


@each_place
def test_a_request_whose_generation_was_prepaid_is_never_a_victim(role: str, tier: str) -> None:
    """Every declared budget here is below one window of 4,096 tokens, so only undeclared requests may go."""
    for seen in runs(role, tier):
        for at, round_ in enumerate(seen.rounds):
            for retraction in policy(round_):
                declared = seen.run.requests[retraction.request_id]["max_new_tokens"]
                assert not declared, f"{seen.name} round {at}: {retraction}"
