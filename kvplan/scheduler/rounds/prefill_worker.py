"""A prefill worker's round: completed prompts leave, then local prefill work; it never retracts (§10)."""

from __future__ import annotations

from kvplan.scheduler.request import State
from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import PlanBuild
from kvplan.scheduler.rounds.phases import local_prefill_work


def prefill_round(admissions: Admissions, roster: Roster, build: PlanBuild) -> None:
    """Hand every finished prompt to the peer, then prefill."""
    journal = admissions.journal
    if journal:
        journal.phase = "hand-off"
    for request in list(roster.decodable.items):
        if request.state == State.PREFILL_DONE and admissions.try_decode(build, request, local=False):
            build.remote_decode.append(request)
    local_prefill_work(admissions, roster, build)
