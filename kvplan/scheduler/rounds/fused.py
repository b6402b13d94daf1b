"""A fused engine's round: everything is local (engine.md §10)."""

from __future__ import annotations

from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import PlanBuild
from kvplan.scheduler.rounds.phases import decode_batch, local_prefill_work
from kvplan.scheduler.rounds.retraction import Retraction


def mixed_round(admissions: Admissions, roster: Roster, retraction: Retraction, build: PlanBuild) -> None:
    """Decodes first, leaving a pending prefill its smallest chunk; then prefills; then retraction."""
    pending = roster.prefilling.items or roster.new_prompts.items or roster.readmissions.items
    reserve = admissions.rules.prefill_reserve if pending else 0
    decode_batch(admissions, roster.decodable.items, build, reserve, admissions.width)
    local_prefill_work(admissions, roster, build)
    retraction.run(build)


def separate_round(admissions: Admissions, roster: Roster, retraction: Retraction, build: PlanBuild) -> None:
    """Prefills alone; decodes only in a round that scheduled no prefill; then retraction."""
    local_prefill_work(admissions, roster, build)
    if not build.prefills:
        decode_batch(admissions, roster.decodable.items, build, 0, admissions.width)
    elif admissions.journal:
        inside = {op.request.seq for op in build.prefills}
        decodes = (request.id for request in roster.decodable.items if request.seq not in inside)
        admissions.journal.phase = "decode"
        admissions.journal.hold(
            decodes, "a round with prefills holds no decodes", build.prefills[0].request.id
        )
    retraction.run(build)
