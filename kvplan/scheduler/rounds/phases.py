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
    try_waiting(admissions, roster, build, remote=False)


def try_waiting(admissions: Admissions, roster: Roster, build: PlanBuild, remote: bool) -> None:
    """Try the waiting prompts; the phase ends when the round is full or an incomplete prefill holds the line.

    ``remote``: a peer prefills them; no budget or batch slot is taken, and one a round is admitted.
    """
    backlog = admissions.backlog
    waiting = roster.new_prompts.items
    # With cache events on every attempt counts: it mentions the prompt's pages (``api.md``).
    skipping = admissions.events is None
    if not waiting or not roster.free_slots:
        return
    if skipping:
        hopeless, first = backlog.hopeless(build.budget)
        if hopeless:
            if first is not None:
                build.blocked(first)
            return
    first, admitted = None, False
    for request in list(waiting):
        if not roster.free_slots or (build.full and not remote):
            return
        if skipping and backlog.cannot(request):
            outcome = Outcome.NO_CAPACITY
        else:
            outcome = admissions.first_chunk(build, request, build.budget, remote)
            if outcome == Outcome.INCOMPLETE or (remote and outcome == Outcome.SCHEDULED):
                return
            admitted = admitted or outcome.scheduled
            if outcome == Outcome.NO_CAPACITY:
                backlog.note(request)
        if outcome == Outcome.NO_CAPACITY:
            build.blocked(request)
            first = first or request
    if skipping:
        backlog.tried(build.budget, first, admitted)


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
