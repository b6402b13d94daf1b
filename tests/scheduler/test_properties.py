"""What holds in every scenario, whatever the role, tier and kinds of group."""

import copy
import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kvplan.scheduler import KVEvent
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import Outcome
from tests.support.drive import Run
from tests.support.observe import servable
from tests.support.peek import StateData, page_owners, page_references, parents, slots, state_of
from tests.support.record import plan_record
from tests.support.scenario import Scenario, load_recording
from tests.support.scenarios import ROLES, TIERS, scenario_of, scenarios

EXAMPLES = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
SEEDS = range(60)
PLACES = [(role, tier) for role in ROLES for tier in TIERS]


def some_scenarios(count: int = 60, **fixed: Any) -> Iterator[Scenario]:
    """``count`` scenarios, always the same ones."""
    for seed in range(count):
        yield scenario_of(Random(seed), **fixed)


@pytest.mark.parametrize(("role", "tier"), PLACES)
def test_only_documented_errors_and_nothing_held_in_the_end(role: str, tier: str) -> None:
    for scenario in some_scenarios(role=role, tier=tier):
        run = Run(scenario)
        for _ in run.rounds():
            pass
        assert all("never fit" in why for why in run.rejected.values()), run.rejected
        run.close()
        assert run.scheduler.active_lcm_blocks() == 0
        total = scenario["config"]["num_device_pages"] - 1
        assert run.scheduler.available_lcm_blocks() == total
        assert run.scheduler.can_clear_cache()
        assert run.scheduler.clear_cache()
        assert run.scheduler.empty_lcm_blocks() == total


@EXAMPLES
@given(scenarios())
def test_free_held_and_cached_pages_are_all_pages(scenario: Scenario) -> None:
    run = Run(scenario)
    total = scenario["config"]["num_device_pages"] - 1
    for _ in run.rounds():
        free, held, cached = parents(run.scheduler)
        assert free + held + cached == total
        assert run.scheduler.empty_lcm_blocks() == free
        assert run.scheduler.available_lcm_blocks() == free + cached
        assert run.scheduler.active_lcm_blocks() <= held


@EXAMPLES
@given(scenarios())
def test_no_page_has_two_owners_that_may_write_it(scenario: Scenario) -> None:
    """A page in two tables is a cached one, and both tables have it below what they compute next."""
    run = Run(scenario)
    for plan in run.rounds():
        cached = [set(pages.values()) for pages in run.scheduler._cache.index.pages]
        for at, owners in enumerate(page_owners(run.scheduler)):
            shared = {page for page, ids in owners.items() if len(ids) > 1}
            assert shared <= cached[at]
        for batch in plan.forward:
            fresh = {name: set(pages) for name, pages in plan.pages_to_zero.items()}
            for group in run.config.cache_groups:
                rows = [page for row in batch.block_tables[group.group_id] for page in row if page > 0]
                counts = Counter(rows)
                assert all(counts[page] <= 1 for page in fresh.get(group.group_id, ()))


@EXAMPLES
@given(scenarios())
def test_request_slots_balance(scenario: Scenario) -> None:
    run = Run(scenario)
    batch = scenario["config"]["max_batch_size"]
    for plan in run.rounds():
        used, free = slots(run.scheduler)
        assert sorted(used + free) == list(range(1, batch + 1))
        for part in plan.forward:
            assert len(part.request_ids) <= batch
            assert len(set(part.request_pool_indices)) == len(part.request_ids)


@pytest.mark.parametrize("role", ROLES)
def test_a_failed_admission_leaves_every_byte_of_state_as_it_was(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: Counter[str] = Counter()

    def watch(name: str) -> None:
        attempt = getattr(Admissions, name)

        def attempted(self: Admissions, *arguments: Any, **named: Any) -> Any:
            before = state_of(run.scheduler)
            outcome = attempt(self, *arguments, **named)
            if not (outcome.scheduled if isinstance(outcome, Outcome) else outcome):
                assert state_of(run.scheduler) == before
                failures[name] += 1
            return outcome

        monkeypatch.setattr(Admissions, name, attempted)

    for name in ("first_chunk", "later_chunk", "try_decode"):
        watch(name)
    for scenario in some_scenarios(80, role=role):
        run = Run(scenario, check=False)
        for _ in run.rounds():
            pass
    assert failures["first_chunk"] > 100
    assert failures["later_chunk"] > 10 or role == "D"
    assert failures["try_decode"] > 10 or role == "P"


class Remembering(Run):
    """A run that keeps the state as it is right before each plan."""

    before: StateData

    def before_plan(self) -> None:
        self.before = state_of(self.scheduler)


@pytest.mark.parametrize("role", ROLES)
def test_a_round_that_schedules_nothing_changes_nothing(role: str) -> None:
    idle = 0
    for scenario in some_scenarios(120, role=role):
        run = Remembering(scenario, check=False)
        for plan in run.rounds():
            retracted = run.scheduler.take_retractions()
            if plan.forward or plan.remote_prefill or plan.remote_decode or plan.cache or retracted:
                continue
            after = state_of(run.scheduler)
            assert after == run.before
            idle += 1
    assert idle > 50


@pytest.mark.parametrize("role", ROLES)
def test_planning_again_when_nothing_could_be_scheduled_changes_no_later_plan(role: str) -> None:
    """Failed attempts repeated any number of times leave no trace that a plan could show."""
    for scenario in some_scenarios(60, role=role):
        once, often = Run(scenario, check=False), Run(scenario, check=False)
        for plan, again in zip(once.rounds(), often.rounds(), strict=True):
            assert once.record(plan) == often.record(again)
            retracted = often.scheduler.take_retractions()
            if not (again.forward or again.remote_prefill or again.remote_decode or again.cache or retracted):
                for _ in range(3):
                    idle = often.scheduler.next_execution_plan()
                    assert plan_record(idle) == {}


def test_a_waiting_request_that_does_not_fit_yet_changes_no_plan_of_the_others() -> None:
    """Requests whose generation is declared are never victims, so nothing may move for the one that waits."""
    waited = 0
    for scenario in some_scenarios(150, role="Fused", tier="device"):
        scenario.pop("clears", None)
        for request in scenario["requests"]:
            request["max_new_tokens"] = request["output"]
        scenario["config"]["max_batch_size"] = 16
        run = Run(scenario, check=False)
        longest = run.scheduler.max_single_request_tokens()
        if longest > 10_000:  # windows alone: nothing is too long for them
            continue
        hopeless = {
            "id": "hopeless",
            "submit": 3,
            "prompt": [[999, 0, max(1, longest - 30)]],
            "max_new_tokens": min(30, max(longest - 1, 1)),
            "output": 1,
        }
        other = copy.deepcopy(scenario)
        other["requests"].append(hopeless)
        beside = Run(other, check=False)
        tried = 0
        for plan, with_it in zip(run.rounds(), beside.rounds(), strict=False):
            tried += beside.scheduler.request_state("hopeless") == "Submitted"
            if any("hopeless" in batch.request_ids for batch in with_it.forward):
                break
            if tried and scenario["config"]["enable_mixed_prefill_decode"]:
                break  # a pending prefill keeps part of a mixed round's budget
            ours, theirs = run.record(plan), beside.record(with_it)
            ours.pop("state")
            theirs.pop("state")
            assert ours == theirs
        waited += tried > 3
    assert waited > 20


@EXAMPLES
@given(scenarios(events=True))
def test_the_same_input_gives_the_same_bytes(scenario: Scenario) -> None:
    scenario["extras"] = True

    def played() -> str:
        run = Run(copy.deepcopy(scenario), check=False)
        return "\n".join(json.dumps(run.record(plan)) for plan in run.rounds())

    assert played() == played()


@pytest.mark.parametrize(("role", "tier"), PLACES)
@pytest.mark.parametrize("declared", [False, True])
def test_cache_events_change_no_plan(role: str, tier: str, declared: bool) -> None:
    """With events on every waiting prompt is really tried every round, so this also shows that attempts
    which are skipped because they must fail again would have failed again."""
    for scenario in some_scenarios(30, role=role, tier=tier):
        if declared:
            for request in scenario["requests"]:
                request["max_new_tokens"] = request["output"]
            scenario["config"]["cache_groups"] = scenario["config"]["cache_groups"][:1]
        silent = Run(scenario, check=False)
        telling = Run(copy.deepcopy(scenario), check=False, enable_kv_cache_events=True)
        for one, other in zip(silent.rounds(), telling.rounds(), strict=True):
            assert silent.record(one) == telling.record(other)


@EXAMPLES
@given(scenarios())
def test_checking_invariants_changes_no_plan(scenario: Scenario) -> None:
    checked, unchecked = Run(scenario, check=True), Run(scenario, check=False)
    for one, other in zip(checked.rounds(), unchecked.rounds(), strict=True):
        assert checked.record(one) == unchecked.record(other)


@EXAMPLES
@given(scenarios())
def test_tables_and_tokens_read_late_are_as_they_were_when_the_plan_was_made(scenario: Scenario) -> None:
    early, late = Run(scenario, check=False), Run(scenario, check=False)
    at_once = []
    for plan in early.rounds():
        record = early.record(plan)
        record.pop("state")
        at_once.append(json.dumps(record))
    plans = list(late.rounds())
    afterwards = []
    for plan in plans:
        record = late.record(plan)
        record.pop("state")
        record.pop("cleared", None)
        afterwards.append(json.dumps(record))
    at_once = [json.dumps({k: v for k, v in json.loads(row).items() if k != "cleared"}) for row in at_once]
    assert afterwards == at_once


@pytest.mark.parametrize(("role", "tier"), PLACES)
def test_applying_the_events_gives_exactly_the_pages_that_the_device_serves(role: str, tier: str) -> None:
    stored = removed = 0
    for scenario in some_scenarios(40, role=role, tier=tier, events=True):
        run = Run(scenario, check=False)
        believed: set[int] = set()
        for _ in run.rounds():
            for event in run.scheduler.drain_kv_events():
                if isinstance(event, KVEvent.BlockStored):
                    assert not believed & set(event.block_hashes), "stored twice"
                    believed |= set(event.block_hashes)
                    stored += 1
                else:
                    assert believed >= set(event.block_hashes), "removed without having been stored"
                    believed -= set(event.block_hashes)
                    removed += 1
            assert believed == servable(run)
    assert stored > 100
    assert removed > 10


@pytest.mark.parametrize("name", ["fused-full-retractdecode-s1925", "d-full+state-retractdecode-s1897"])
def test_a_scheduler_is_a_value_that_can_be_copied_in_the_middle_of_a_run(name: str) -> None:
    scenario = load_recording(name)["scenario"]
    scenario["max_rounds"] = 60
    run = Run(scenario)
    whole = [run.record(plan) for plan in run.rounds()]
    first = Run(scenario)
    rows = []
    for at, plan in enumerate(first.rounds()):
        rows.append(first.record(plan))
        if at == 30:
            first.scheduler = copy.deepcopy(first.scheduler)
    assert rows == whole


def test_pages_are_held_only_by_tables_and_transfers() -> None:
    for scenario in some_scenarios(30, tier="device"):
        run = Run(scenario, check=False)
        for _ in run.rounds():
            owners = page_owners(run.scheduler)
            for group, refs in enumerate(page_references(run.scheduler)):
                assert {page: count for page, count in enumerate(refs) if count} == {
                    page: len(ids) for page, ids in owners[group].items()
                }
