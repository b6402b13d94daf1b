"""The phases that several roles share: local prefill work and the decode batch (engine.md §10)."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.scheduler.journal import Journal
from kvplan.scheduler.request import Request, State
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
    journal = admissions.journal
    readmission = next_readmission(roster)
    if build.full:
        hold_rest(journal, roster, readmission, [], build.why_full)
        return
    sealed = False
    if readmission is not None:
        if journal:
            journal.phase = "prefill, readmission"
            hold_readmissions(journal, roster, readmission)
        outcome = admissions.first_chunk(build, readmission, build.budget, remote=False)
        if outcome == Outcome.INCOMPLETE:
            hold_rest(journal, roster, None, [readmission], HEAD_OF_LINE, readmission.id)
            return
        sealed = not outcome.scheduled
    done = [readmission] if readmission is not None else []
    for request in list(roster.prefilling.items):
        if readmission is request:
            continue
        if build.full:
            hold_rest(journal, roster, None, done, build.why_full)
            return
        if journal:
            journal.phase = "prefill, resident"
        done.append(request)
        outcome = admissions.later_chunk(build, request, build.budget)
        if outcome == Outcome.INCOMPLETE:
            hold_rest(journal, roster, None, done, HEAD_OF_LINE, request.id)
            return
        if outcome == Outcome.NO_CAPACITY:
            build.blocked(request)
            hold_rest(journal, roster, None, done, "a resident prefill could not be admitted", request.id)
            return
    if not sealed:
        try_waiting(admissions, roster, build, remote=False)
    elif journal and readmission is not None:
        journal.phase = "prefill, new"
        journal.hold(
            (r.id for r in roster.new_prompts.items), "sealed behind the readmission", readmission.id
        )


def hold_readmissions(journal: Journal, roster: Roster, first: Request) -> None:
    """Note in the journal the readmissions behind the one that a round may start."""
    others = (request.id for request in roster.readmissions.items if request is not first)
    journal.hold(others, "one readmission a round, and another comes first", first.id)


HEAD_OF_LINE = "an incomplete prefill holds the line"


def hold_rest(
    journal: Journal | None,
    roster: Roster,
    readmission: Request | None,
    done: Sequence[Request],
    reason: str,
    by: str | None = None,
) -> None:
    """Note in the journal who is not tried any more once local prefill work has ended."""
    if journal is None:
        return
    if readmission is not None:
        journal.phase = "prefill, readmission"
        hold_readmissions(journal, roster, readmission)
        journal.hold([readmission.id], reason, by)
    journal.phase = "prefill, resident"
    journal.hold((r.id for r in roster.prefilling.items if r not in done), reason, by)
    journal.phase = "prefill, new"
    journal.hold((r.id for r in roster.new_prompts.items if r not in done), reason, by)


def try_waiting(admissions: Admissions, roster: Roster, build: PlanBuild, remote: bool) -> None:
    """Try the waiting prompts in submission order; one that does not fit holds up nobody behind it (§10).

    The phase ends when the round is full or an incomplete prefill holds the line. ``remote``: a peer prefills
    them; no budget or batch slot is taken, and one a round is admitted.
    """
    backlog, journal = admissions.backlog, admissions.journal
    waiting = roster.new_prompts.items
    if journal:
        journal.phase = "remote admission" if remote else "prefill, new"
    # With cache events on every attempt counts: it mentions the prompt's pages (``api.md``). And a journal
    # has to tell of every attempt.
    skipping = admissions.events is None and journal is None
    if not waiting:
        return
    if skipping and roster.free_slots:
        hopeless, first = backlog.hopeless(build.budget)
        if hopeless:
            if first is not None:
                build.blocked(first)
            return
    first, admitted = None, False
    for request in list(waiting):
        ended = ""
        if not roster.free_slots:
            ended = "no free request slot"
        elif build.full and not remote:
            ended = build.why_full
        if ended:
            if journal:
                journal.hold((r.id for r in waiting if r.seq >= request.seq), ended)
            return
        if skipping and backlog.cannot(request, build.budget):
            outcome = Outcome.NO_CAPACITY
        else:
            outcome = admissions.first_chunk(build, request, build.budget, remote)
            if outcome == Outcome.INCOMPLETE or (remote and outcome == Outcome.SCHEDULED):
                if journal:
                    reason = "one remote admission a round" if remote else HEAD_OF_LINE
                    journal.hold((r.id for r in waiting if r.seq > request.seq), reason, request.id)
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
    journal = admissions.journal
    if journal:
        journal.phase = "decode"
    decodes, width, quick = build.decodes, admissions.width, journal is None
    decoding = State.DECODING
    for at, request in enumerate(list(requests)):
        if build.room <= 0 or build.budget <= 0 or build.budget < reserve + cost:
            if journal:
                why = build.why_full if build.full else "the budget left is kept for a pending prefill"
                journal.hold((r.id for r in requests[at:]), why)
            return
        # The common step, spelt out: it takes room that is there and needs no closer look (``try_decode``).
        tokens = request.reserve
        if (
            quick
            and tokens <= request.slack
            and request.state is decoding
            and len(request.extra) < request.attention_extra
        ):
            request.slack -= tokens
            request.taken += tokens
            request.reserve = width
            request.results_out += 1
            decodes.append(request)
            build.budget -= cost
            build.room -= 1
        elif admissions.try_decode(build, request):
            build.push_decode(request, cost)
        else:
            build.blocked(request)
