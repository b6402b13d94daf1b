"""A decode worker's round: local recovery alone, else decodes and one remote admission (engine.md §10)."""

from __future__ import annotations

from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import Outcome, PlanBuild
from kvplan.scheduler.rounds.phases import decode_batch, hold_readmissions, next_readmission, try_waiting
from kvplan.scheduler.rounds.retraction import Retraction


def decode_round(admissions: Admissions, roster: Roster, retraction: Retraction, build: PlanBuild) -> None:
    """A recovery chunk has the round to itself; decodes cost no budget on this role."""
    if recover(admissions, roster, build):
        hold_all(admissions, roster, build)
        return
    decode_batch(admissions, roster.decodable.items, build, 0, 0)
    admit_remote(admissions, roster, build)
    retraction.run(build)


def recover(admissions: Admissions, roster: Roster, build: PlanBuild) -> bool:
    """Try the recovery in progress, else the next readmission; whether it was scheduled."""
    journal = admissions.journal
    if roster.prefilling.items:
        resident = roster.prefilling.items[0]
        if journal:
            journal.phase = "prefill, readmission"
            journal.hold((r.id for r in roster.readmissions.items), ONE_RECOVERY, resident.id)
            journal.phase = "prefill, resident"
        outcome = admissions.later_chunk(build, resident, build.budget)
        if outcome == Outcome.NO_CAPACITY:
            build.blocked(resident)
        return outcome.scheduled
    readmission = next_readmission(roster)
    if readmission is None:
        return False
    if journal:
        journal.phase = "prefill, readmission"
        hold_readmissions(journal, roster, readmission)
    return admissions.first_chunk(build, readmission, build.budget, remote=False).scheduled


def hold_all(admissions: Admissions, roster: Roster, build: PlanBuild) -> None:
    """Note in the journal who is not tried because a recovery has the round to itself."""
    journal = admissions.journal
    if journal is None:
        return
    recovered = build.prefills[0].request
    decodes = (request.id for request in roster.decodable.items if request is not recovered)
    for phase, names in (
        ("decode", decodes),
        ("remote admission", (request.id for request in roster.new_prompts.items)),
    ):
        journal.phase = phase
        journal.hold(names, "a recovery has the round to itself", recovered.id)


ONE_RECOVERY = "one request at a time recovers"


def admit_remote(admissions: Admissions, roster: Roster, build: PlanBuild) -> None:
    """Have the peer prefill the first waiting prompt that fits, one a round."""
    try_waiting(admissions, roster, build, remote=True)
