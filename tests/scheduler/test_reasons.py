"""Each reason that the journal can state, stated; and another one once the rule's input is flipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import pytest

from kvplan.scheduler import Cache
from kvplan.scheduler.chunks import ChunkRules, Rule, cut_chunk
from kvplan.scheduler.journal import Attempt, Held, Journal, RetractionStep
from tests.support.engine import Engine, has, tokens
from tests.support.groups import config, full, sliding, state
from tests.support.observe import Observer, Round
from tests.support.scenarios import scenario_of


def engine(*groups: Any, **fields: Any) -> Engine:
    made = Engine(config(*groups, **fields))
    made.scheduler.journal = Journal()
    return made


def said(made: Engine) -> dict[str, str]:
    """Plan a round and land it: for each request why it was not tried, or what became of its last attempt."""
    made.step()
    return newest(made)


def newest(made: Engine) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for entry in entries(made):
        if isinstance(entry, Held):
            reasons |= dict.fromkeys(entry.request_ids, entry.reason)
        elif isinstance(entry, Attempt):
            reasons[entry.request_id] = entry.outcome
    return reasons


def entries(made: Engine) -> list[Attempt | Held | RetractionStep]:
    journal = made.scheduler.journal
    assert journal is not None
    assert journal.round is not None
    return journal.round.entries


# --- why a request is not tried ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "reason"), [(8, "the budget is spent"), (9, "incomplete"), (16, "scheduled")]
)
def test_a_spent_budget(chunk: int, reason: str) -> None:
    made = engine(chunk=chunk)
    made.submit("a", 8)
    made.submit("b", 8)
    assert said(made) == {"a": "scheduled", "b": reason}


@pytest.mark.parametrize(("batch", "reason"), [(1, "the batch is full"), (2, "scheduled")])
def test_a_full_batch(batch: int, reason: str) -> None:
    made = engine(max_batch_size=batch)
    made.submit("a", 8)
    made.step()
    made.submit("b", 8)
    assert said(made) == {"a": "scheduled", "b": reason}


@pytest.mark.parametrize(("batch", "reason"), [(1, "no free request slot"), (2, "scheduled")])
def test_no_request_slot(batch: int, reason: str) -> None:
    made = engine(role="P", max_batch_size=batch)
    made.submit("a", 8)
    made.plan()  # its result is out: it holds its slot and has no turn
    made.submit("b", 8)
    assert said(made) == {"b": reason}


@pytest.mark.parametrize(
    ("prompt", "reason"), [(9, "an incomplete prefill holds the line"), (7, "incomplete")]
)
def test_the_head_of_the_line(prompt: int, reason: str) -> None:
    made = engine(chunk=8)
    made.submit("a", prompt)
    made.submit("b", 8)
    assert said(made)["b"] == reason


@pytest.mark.parametrize(
    ("pages", "reasons"),
    [(6, ("no_capacity", "a resident prefill could not be admitted")), (16, ("scheduled", "incomplete"))],
)
def test_a_resident_prefill_without_pages(pages: int, reasons: tuple[str, str]) -> None:
    made = engine(pages=pages, chunk=8)
    made.submit("a", 8, max_new=8)
    made.step()
    made.submit("b", 12)
    made.plan()
    made.submit("c", 12)
    made.plan()
    told = newest(made)
    assert (told["b"], told["c"]) == reasons


@pytest.mark.parametrize(
    ("more", "reason"), [(True, "the budget left is kept for a pending prefill"), (False, "scheduled")]
)
def test_budget_kept_for_a_pending_prefill(more: bool, reason: str) -> None:
    made = engine(full(), state(), chunk=4, pages=32)
    made.submit("a", 4)
    made.step()
    if more:
        made.submit("b", 12)
    assert said(made)["a"] == reason


@pytest.mark.parametrize(
    ("mixed", "reason"), [(False, "a round with prefills holds no decodes"), (True, "scheduled")]
)
def test_decodes_beside_prefills(mixed: bool, reason: str) -> None:
    made = engine(enable_mixed_prefill_decode=mixed)
    made.submit("a", 8)
    made.step()
    made.submit("b", 8)
    assert said(made) == {"a": reason, "b": "scheduled"}
    assert said(made) == {"a": "scheduled", "b": "scheduled"}


def test_one_remote_admission_a_round() -> None:
    made = engine(role="D")
    made.submit("a", 8)
    made.submit("b", 8)
    assert said(made) == {"a": "scheduled", "b": "one remote admission a round"}
    assert said(made) == {"b": "scheduled"}


# --- what cuts a chunk, and what bounds a hit --------------------------------------------------------------

PLAIN, STATES, WINDOW = ChunkRules(8, 0, False), ChunkRules(8, 0, True), ChunkRules(8, 6, False)


@pytest.mark.parametrize(
    ("rules", "first", "hit", "rest", "budget", "promotion", "tokens", "rule"),
    [
        (PLAIN, 0, False, 20, 20, 0, 20, Rule.COMPLETES),
        (PLAIN, 0, False, 20, 19, 0, 19, Rule.BUDGET),
        (STATES, 0, False, 20, 19, 0, 16, Rule.PAGE),
        (STATES, 0, False, 20, 20, 0, 20, Rule.COMPLETES),
        (PLAIN, 0, False, 20, 20, 8, 8, Rule.PROMOTION),
        (PLAIN, 0, False, 20, 20, 24, 20, Rule.COMPLETES),
        (PLAIN, 0, False, 20, 0, 0, 0, Rule.NO_BUDGET),
        (WINDOW, 8, True, 20, 6, 0, 0, Rule.NO_BUDGET),
        (WINDOW, 8, False, 20, 6, 0, 6, Rule.BUDGET),
        (STATES, 0, False, 20, 7, 0, 0, Rule.NO_PAGE),
        (STATES, 0, False, 20, 8, 0, 8, Rule.BUDGET),
        (STATES, 4, False, 20, 3, 0, 0, Rule.NO_PAGE),
        (STATES, 4, False, 20, 4, 0, 4, Rule.BUDGET),
        (WINDOW, 0, False, 20, 18, 0, 14, Rule.FINAL_WINDOW),
        (WINDOW, 0, False, 20, 14, 0, 14, Rule.BUDGET),
        (WINDOW, 0, False, 5, 4, 0, 0, Rule.NO_WINDOW),
        (WINDOW, 0, False, 5, 5, 0, 5, Rule.COMPLETES),
    ],
)
def test_the_rule_that_cut_a_chunk(
    rules: ChunkRules, first: int, hit: bool, rest: int, budget: int, promotion: int, tokens: int, rule: Rule
) -> None:
    assert cut_chunk(rules, first, hit, rest, budget, promotion) == (tokens, rule)


def first_attempt(made: Engine, rid: str) -> Attempt:
    made.plan()
    return next(one for one in entries(made) if isinstance(one, Attempt) and one.request_id == rid)


@pytest.mark.parametrize(
    ("fields", "bound", "rule", "limit", "found"),
    [
        ({}, 2**31 - 1, "first token rule", 8, 8),
        ({"prefix_replay_tokens": 5}, 2**31 - 1, "first token rule", 4, 4),
        ({}, 7, "the request's own bound", 4, 4),
        ({}, 8, "the request's own bound", 8, 8),
        ({}, 11, "first token rule", 8, 8),
        ({"disable_prefix_cache": True}, 2**31 - 1, "the prefix cache is disabled", 0, 0),
    ],
)
def test_the_rule_that_bounds_a_hit(
    fields: dict[str, Any], bound: int, rule: str, limit: int, found: int
) -> None:
    made = engine(**fields)
    made.run("a", tokens(12, shared=12))
    made.submit("b", tokens(12, shared=12), max_cached_prefix_tokens=bound)
    hit = first_attempt(made, "b").hit
    assert hit is not None
    assert hit.limit_rule.startswith(rule)
    assert (hit.limit, hit.device) == (limit, found)


@pytest.mark.parametrize(("window", "device", "promotion"), [(8, 0, 12), (64, 12, 0)])
def test_a_window_that_was_not_kept_ends_the_hit_and_sets_a_promotion_boundary(
    window: int, device: int, promotion: int
) -> None:
    made = engine(full(), sliding(window), pages=64)
    made.run("a", tokens(32, shared=32), outputs=2)
    made.submit("b", tokens(32, shared=12))
    hit = first_attempt(made, "b").hit
    assert hit is not None
    assert (hit.device, hit.closed, hit.promotion) == (device, 12, promotion)
    steps = {step.group_id: step for step in hit.steps}
    assert steps["full"].missing_key is not None
    assert steps["full"].boundary == 3
    assert steps["sliding"].boundary * 4 == device


@pytest.mark.parametrize(("same", "exempt"), [(True, 3), (False, 0)])
def test_what_an_admission_hits_is_exempt_from_its_evictions(same: bool, exempt: int) -> None:
    made = engine(pages=8)
    made.run("a", tokens(14, shared=14))
    made.submit("b", tokens(30, shared=14 if same else 0))
    asked = made.scheduler.diagnose("b")
    assert asked is not None
    assert asked.fits
    assert [group.evictable for group in asked.groups] == [3 - exempt]
    one = first_attempt(made, "b")
    [ask] = one.groups
    assert (ask.own_hits, ask.evictable) == (exempt, 3 - exempt)
    assert len(one.evicted) == 3 - exempt


@pytest.mark.parametrize(("host", "retries", "host_hit"), [(3, 1, 4), (8, 0, 12)])
def test_a_first_chunk_that_starts_over_for_want_of_host_pages(
    host: int, retries: int, host_hit: int
) -> None:
    made = engine(pages=32, host=host, enable_l3_storage=True)
    made.submit("x", tokens(9, seed=9))
    made.steps(2)
    scheduler, prompt = made.scheduler, tokens(13, shared=13)
    scheduler.register_storage_keys(*scheduler.expand_prefix_keys(scheduler.prefix_hashes_for_tokens(prompt)))
    made.submit("a", prompt)
    one = first_attempt(made, "a")
    assert one.hit is not None
    assert (one.retries, one.hit.host) == (retries, host_hit)


# --- how a retraction goes -----------------------------------------------------------------------------------


class Watched(Observer):
    """A run with a journal, looked at right before each plan."""

    def rounds_told(self) -> Iterator[tuple[Round, list[Attempt | Held | RetractionStep]]]:
        self.scheduler.journal = journal = Journal()
        for plan in self.rounds():
            assert journal.round is not None
            yield self.note(plan), journal.round.entries


@cache
def watched(role: str, tier: str) -> list[tuple[Round, list[Attempt | Held | RetractionStep]]]:
    return [
        told for seed in range(60) for told in Watched(scenario_of(Random(seed), role, tier)).rounds_told()
    ]


EVERY = [(role, tier) for role in ("Fused", "D") for tier in ("device", "host")]
OUTCOMES = Counter[str]()


@pytest.mark.parametrize(("role", "tier"), EVERY)
def test_the_first_thing_said_of_a_retraction_is_what_held(role: str, tier: str) -> None:
    """Each reason is stated exactly when its cause was there, and none before it in the rule's order was."""
    for looked, told in watched(role, tier):
        steps = [entry for entry in told if isinstance(entry, RetractionStep)]
        if not steps:
            continue
        first, at = steps[0], told.index(steps[0])
        prefilled = any(
            isinstance(entry, Attempt) and entry.cut and entry.outcome in ("scheduled", "incomplete")
            for entry in told[:at]
        )
        loading = bool(looked.load_pages)
        storing = bool(looked.pinned_sources)
        OUTCOMES[first.outcome] += 1
        if first.outcome == "none: a prefill made progress":
            assert prefilled
            continue
        assert not prefilled
        if first.outcome == "none: a load-back is in flight":
            assert loading
            continue
        assert not loading
        if first.outcome.startswith("none: a pinned store"):
            assert storing or has(looked.plan, Cache.WriteBackOp)
            continue
        assert not storing
        ranked = [one for one in first.candidates if not one.exempt]
        if first.outcome == "stopped: no victim":
            assert not ranked
            continue
        assert ranked
        victim = first.victim
        if first.outcome == "waits: the victim's result is out":
            assert victim in looked.results_out or any(
                victim == one.request_id for one in scheduled(told[:at])
            )
            continue
        assert victim not in looked.results_out
        if first.outcome.startswith("waits: a PD transfer"):
            assert victim is not None
            assert (role, looked.states[victim]) == ("D", "RemotePrefilling")
            continue
        assert first.outcome == "retracted"
        assert (victim, first.grant) in [(one.request_id, one.for_request) for one in looked.retractions]


def scheduled(told: list[Attempt | Held | RetractionStep]) -> list[Attempt]:
    done = ("scheduled", "incomplete")
    return [one for one in told if isinstance(one, Attempt) and one.outcome in done]


@pytest.mark.parametrize(("role", "tier"), EVERY)
def test_how_a_retraction_ends_is_told(role: str, tier: str) -> None:
    for _, told in watched(role, tier):
        steps = [entry for entry in told if isinstance(entry, RetractionStep)]
        for at, step in enumerate(steps):
            if step.outcome != "retracted":
                OUTCOMES[step.outcome] += 1
                assert at == len(steps) - 1
            if step.outcome.startswith("stopped: the victim was the blocker"):
                assert steps[at - 1].victim == steps[at - 1].grant
                assert not any(
                    isinstance(entry, Held) and entry.phase in ("prefill, new", "remote admission")
                    for entry in told
                    if set(getattr(entry, "request_ids", ())) - {steps[at - 1].victim}
                )
            if step.outcome.startswith("stopped: a prefill cannot join"):
                assert any(one.kind.startswith("decode step") for one in scheduled(told))


def test_every_way_in_which_a_retraction_goes_was_seen() -> None:
    for role, tier in EVERY:
        test_the_first_thing_said_of_a_retraction_is_what_held(role, tier)
        test_how_a_retraction_ends_is_told(role, tier)
    wanted = {
        "none: a prefill made progress",
        "none: a load-back is in flight",
        "none: a pinned store is in flight and will give its pages back",
        "stopped: no victim",
        "waits: the victim's result is out",
        "retracted",
        "stopped: the victim was the blocker, and no prompt waits",
        "stopped: a prefill cannot join this round's decodes",
    }
    assert wanted <= {outcome for outcome, count in OUTCOMES.items() if count > 2}, OUTCOMES


@pytest.mark.parametrize(("declared", "exempt"), [(0, False), (4_096, True), (4_097, False), (9_000, False)])
def test_a_victim_is_exempt_while_its_admission_covers_what_it_declares(declared: int, exempt: bool) -> None:
    made = engine(pages=4_000, role="Fused")
    made.submit("a", 8, max_new=declared)
    made.submit("b", 8)
    made.step()
    ranked = made.scheduler._retraction.candidates()
    mine = next(one for one in ranked if one.request_id == "a")
    assert mine.exempt == exempt
    assert (mine.secured >= mine.open) == exempt or not declared


# --- who is held back for a readmission or a recovery --------------------------------------------------------


@pytest.mark.parametrize(("role", "tier"), [("Fused", "host"), ("P", "host"), ("D", "device"), ("D", "host")])
def test_who_is_held_back_is_held_by_what_was_there(role: str, tier: str) -> None:
    seen = Counter[str]()
    for looked, told in watched(role, tier):
        for entry in told:
            if not isinstance(entry, Held):
                continue
            seen[entry.reason] += 1
            by = [one for one in told if isinstance(one, Attempt) and one.request_id == entry.by]
            if entry.reason == "sealed behind the readmission":
                assert by
                assert by[0].phase == "prefill, readmission"
                assert by[0].outcome not in ("scheduled", "incomplete")
            elif entry.reason == "a recovery has the round to itself":
                assert role == "D"
                assert by[0].outcome in ("scheduled", "incomplete")
                assert looked.plan.forward[0].request_ids == [entry.by]
            elif entry.reason == "one request at a time recovers":
                assert looked.states[entry.by or ""] == "Prefilling"
                assert {looked.states[name] for name in entry.request_ids} == {"Retracted"}
            elif entry.reason.startswith("one readmission a round"):
                assert {looked.states[name] for name in [*entry.request_ids, entry.by or ""]} == {"Retracted"}
            elif entry.reason == "an incomplete prefill holds the line":
                assert by[-1].outcome == "incomplete"
            elif entry.reason == "one remote admission a round":
                assert looked.plan.remote_prefill is not None
                assert looked.plan.remote_prefill.request_ids == [entry.by]
    if role == "D":
        assert seen["a recovery has the round to itself"] > 10
        assert seen["one remote admission a round"] > 10
    if (role, tier) == ("Fused", "host"):
        assert seen["sealed behind the readmission"] > 10
        assert seen["one readmission a round, and another comes first"] > 2
