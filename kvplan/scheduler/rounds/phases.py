"""The phases that several roles share: local prefill work and the decode batch (engine.md §10)."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.scheduler.request import Request
from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import Outcome, PlanBuild


def next_readmission(roster: Roster) -> Request | None:
    """The one readmission a round may start: resumed generations first, then the lowest epoch (§10)."""
    waiting = roster.readmissions.items
    if not waiting:
        return None
    return min(waiting, key=lambda request: (not request.resumes_generation, request.retraction_epoch))


def local_prefill_work(admissions: Admissions, roster: Roster, build: PlanBuild) -> None:
    """The readmission, then resident chunks, then new prompts; an incomplete chunk ends it (§10)."""
    if build.full:
        return
    sealed = False
    readmission = next_readmission(roster)
    if readmission is not None:
        outcome = admissions.first_chunk(build, readmission, build.budget, remote=False)
        if outcome == Outcome.INCOMPLETE:
            return
        sealed = not outcome.scheduled
    for request in list(roster.prefilling.items):
        if build.full:
            return
        if readmission is request:
            continue
        outcome = admissions.later_chunk(build, request, build.budget)
        if outcome == Outcome.INCOMPLETE:
            return
        if outcome == Outcome.NO_CAPACITY:
            build.blocked(request)
            return
    if not sealed:
        new_prompts(admissions, roster, build)


def new_prompts(admissions: Admissions, roster: Roster, build: PlanBuild) -> None:
    """Try waiting prompts in submission order; one that does not fit holds up nobody behind it (§10)."""
    for request in list(roster.new_prompts.items):
        if build.full:
            return
        outcome = admissions.first_chunk(build, request, build.budget, remote=False)
        if outcome == Outcome.INCOMPLETE:
            return
        if outcome == Outcome.NO_CAPACITY:
            build.blocked(request)


def decode_batch(
    admissions: Admissions, requests: Sequence[Request], build: PlanBuild, reserve: int, cost: int
) -> None:
    """A step of every request that can decode, leaving ``reserve`` tokens of budget (§10)."""
    for request in list(requests):
        if build.full or build.budget < reserve + cost:
            return
        op = admissions.try_decode(build, request)
        if op is None:
            build.blocked(request)
        else:
            build.push_decode(op, cost)
