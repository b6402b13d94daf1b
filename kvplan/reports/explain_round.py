"""A round as a tree for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from kvplan.explain.cures import Cure
from kvplan.explain.explanation import Phase, RoundExplanation, Wait
from kvplan.explain.history import Course, Refused
from kvplan.replay.dead_end import DeadEnd
from kvplan.reports import attempts
from kvplan.reports.columns import folded
from kvplan.reports.dead_end import cure_lines, dead_end_lines
from kvplan.reports.replay_units import counted, duration, grouped, rounds_time
from kvplan.scheduler.journal import Attempt, Candidate, Held, PoolState, RetractionStep

LABEL = 8
NAMED = 4
Time = Callable[[float], str]


def rounds_json(
    explanations: Sequence[RoundExplanation],
    wanted: Sequence[int],
    dead_end: DeadEnd | None = None,
    cures: Sequence[Cure] = (),
    stopped: bool = False,
    course: Course | None = None,
    worker: str | None = None,
    ending: str | None = None,
) -> str:
    """The explanations as JSON, names as in the dataclasses, and all rounds that were asked for; ends with a
    newline. ``dead_end``: the one that is explained, and what would have spared it; ``stopped``: as far as it was
    tried before Ctrl-C. ``course``: of the request whose rounds they are.
    ``worker``: the one whose rounds they are, where there are several, and ``ending`` the dead end of them all."""
    value: dict[str, object] = {"asked_rounds": wanted, "rounds": explanations}
    if dead_end is not None:
        value |= {"dead_end": dead_end, "cures": cures, "cures_stopped": stopped}
    if ending is not None:
        value |= {"ending": ending, "cures": cures, "cures_stopped": stopped}
    if course is not None:
        value["request"] = course
    if worker is not None:
        value["worker"] = worker
    return _json(value)


def rounds_text(
    explanations: Sequence[RoundExplanation],
    width: int,
    lockstep: bool = False,
    request_id: str | None = None,
    wanted: Sequence[int] = (),
    dead_end: DeadEnd | None = None,
    cures: Sequence[Cure] = (),
    stopped: bool = False,
    course: Course | None = None,
    worker: str | None = None,
    ending: str | None = None,
) -> Text:
    """The explanations one after the other, at ``width`` columns.

    ``lockstep``: times are rounds. ``request_id`` is the one asked for, ``wanted`` all rounds asked for.
    ``dead_end`` is the one that they are of, ``cures`` what would have spared it, ``stopped``: as
    far as it was tried before Ctrl-C. ``course`` is of the request whose rounds they are,
    ``worker`` the one whose rounds they are, where there are several, and ``ending`` the dead end of them all.
    """
    time = rounds_time if lockstep else duration
    lines: list[str] = []
    if dead_end is not None:
        lines += dead_end_lines(dead_end, width)
    if worker is not None:
        how = "" if ending is None else f"; the replay ends in a {ending}, this is its last round here"
        lines += folded("worker", f"{worker}{how}", width, LABEL)
    if course is not None:
        lines += folded("", _course(course, time), width, 0)
    for explanation in explanations:
        lines += [""] if lines else []
        lines += _Round(explanation, width, time, request_id).lines()
    left = wanted[len(explanations) :]
    if left:
        more = f"{counted(len(left), 'more round')} (--all): {_names([grouped(at) for at in left])}"
        lines += ["", *folded("", more, width, LABEL)]
    if dead_end is not None or ending is not None:
        lines += ["", *cure_lines(cures, width, time, stopped, worker is not None)]
    return _styled(lines)


def _course(course: Course, time: Time) -> str:
    """A request's way through the run, in a sentence."""
    text = (
        f"{course.request_id} arrived in round {grouped(course.arrived_round)} at {time(course.arrived_s)}, "
    )
    if course.admitted_round is None:
        return text + "and was not admitted in what was played"
    text += f"was admitted in round {grouped(course.admitted_round)}"
    if course.waited_s:
        text += f" (waited {time(course.waited_s)})"
    if course.retractions:
        text += f", retracted {counted(course.retractions, 'time')}"
    if course.finished_round is None or course.finished_s is None:
        return text + " and did not finish in what was played"
    return text + f" and finished in round {grouped(course.finished_round)} at {time(course.finished_s)}"


def refused_json(never: Refused) -> str:
    """A request that never fits, as JSON."""
    return _json({"never": never})


def refused_text(never: Refused, width: int) -> Text:
    """A request that never fits, in words."""
    text = (
        f"{never.request_id} never enters: it was refused in round {grouped(never.round)}; it needs "
        f"{counted(never.needed_tokens, 'token')} (prompt and generation), and the pool admits requests of at "
        f"most {grouped(never.limit_tokens)}"
    )
    lines = folded("RESULT", text, width, LABEL)
    lines += folded(
        "try", f"kvplan max-request --tokens {never.needed_tokens}   what it would take", width, LABEL
    )
    return _styled(lines)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _styled(lines: Sequence[str]) -> Text:
    text = Text(overflow="ignore", no_wrap=True)
    for line in lines:
        word = line.split(" ", 1)[0]
        text.append(line + "\n", style={"RESULT": "bold", "try": "cyan", "round": "bold"}.get(word, ""))
    return text


class _Round:
    def __init__(self, explanation: RoundExplanation, width: int, time: Time, request_id: str | None) -> None:
        self.it = explanation
        self.width = width
        self.time = time
        self.request_id = request_id

    def lines(self) -> list[str]:
        parts = [self._header(), self._pool(), self._tree(), self._waits(), self._result(), self._try()]
        return [line for part in parts for line in part]

    def _header(self) -> list[str]:
        it = self.it
        parts = (
            f"{grouped(it.round)} at {self.time(it.time_s)}",
            _role(it),
            f"budget {grouped(it.budget)} → {grouped(it.budget_left)} tokens",
            f"batch {grouped(it.scheduled)} of {grouped(it.batch)}",
            f"{grouped(it.running)} run, {grouped(it.waiting)} wait",
        )
        # A line ends between two of them, not inside one.
        return folded("round", "   ".join(part.replace(" ", "\u00a0") for part in parts), self.width, LABEL)

    def _pool(self) -> list[str]:
        before, after = self.it.pool_before, self.it.pool_after
        whole = before.free + before.cached + before.held
        blocks = ", ".join(
            f"{_change(getattr(before, name), getattr(after, name))} {word}"
            for name, word in (("free", "free"), ("cached", "cached (evictable)"), ("held", "held"))
        )
        lines = folded("pool", f"{counted(whole, 'LCM block')}: {blocks}", self.width, LABEL)
        for group in before.groups:
            lines += folded("", f"{group}: {_group(before, after, group)}", self.width, LABEL)
        return lines

    def _tree(self) -> list[str]:
        tree = Tree("phases, in the order in which they ran")
        for phase in self.it.phases:
            self._phase(tree, phase)
        if not self.it.phases:
            tree.add("nothing to schedule")
        if self.it.blocker is None:
            tree.add("retraction: none, no admission failed for capacity (readmissions do not count)")
        file = StringIO()
        Console(file=file, width=self.width, highlight=False, color_system=None, legacy_windows=False).print(
            tree
        )
        return [line.rstrip() for line in file.getvalue().splitlines()]

    def _phase(self, tree: Tree, phase: Phase) -> None:
        if phase.name == "retraction":
            branch = tree.add(f"retraction for {self.it.blocker}")
            for step in phase.retraction:
                self._retraction(branch, step)
            return
        done = [one for one in phase.attempts if one.outcome in ("scheduled", "incomplete")]
        short = [one for one in phase.attempts if one.outcome not in ("scheduled", "incomplete")]
        counts = [f"{grouped(len(done))} scheduled"] if done else []
        counts += [f"{grouped(len(short))} not"] if short else []
        counts += [f"{grouped(sum(len(h.request_ids) for h in phase.held))} not tried"] if phase.held else []
        branch = tree.add(f"{phase.name}: {', '.join(counts)}")
        plain = [one for one in done if one.cut is None and not one.evicted]
        for one in done:
            if one.cut is not None or one.evicted or one.request_id == self.request_id:
                self._attempt(branch, one)
        if plain:
            branch.add(f"{_names([one.request_id for one in plain])}: a step each")
        for at, one in enumerate(short):
            if at < NAMED or one.request_id == self.request_id:
                self._attempt(branch, one)
        rest = [one.request_id for one in short[NAMED:] if one.request_id != self.request_id]
        if rest:
            branch.add(f"not now either: {_names(rest)}")
        for held in phase.held:
            branch.add(_held(held))

    def _attempt(self, branch: Tree, attempt: Attempt) -> None:
        outcome = attempts.OUTCOMES.get(attempt.outcome, attempt.outcome)
        blocker = (
            " ← blocker" if attempt.request_id == self.it.blocker and attempt.outcome == "no_capacity" else ""
        )
        node = branch.add(f"{attempt.request_id} {attempts.chunk(attempt)}: {outcome}{blocker}")
        if attempt.outcome == "no_capacity":
            node.add(attempts.shortage(attempt))
        if attempt.hit is not None and (attempt.hit.device or attempt.hit.host):
            node.add(attempts.hit(attempt.hit))
        if attempt.evicted:
            node.add(attempts.evictions(attempt))
        if attempt.retries:
            node.add(f"started over {counted(attempt.retries, 'time')}: the host had no page to load into")

    def _retraction(self, branch: Tree, step: RetractionStep) -> None:
        whom = f": {step.victim}" if step.victim else ""
        node = branch.add(f"{step.outcome}{whom}" + (f", for {step.grant}" if step.grant else ""))
        exempt = [one for one in step.candidates if one.exempt]
        ranked = [one for one in step.candidates if not one.exempt]
        ranked.sort(key=_by_rank)
        for one in ranked[:NAMED]:
            node.add(_candidate(one))
        if len(ranked) > NAMED:
            node.add(f"and {grouped(len(ranked) - NAMED)} that rank behind")
        if exempt:
            node.add(
                f"exempt: {_names([one.request_id for one in exempt])}; each admission has secured the whole "
                "generation that was open"
            )

    def _waits(self) -> list[str]:
        lines: list[str] = []
        for wait in self.it.waits:
            if wait.remedies is None and wait.request_id != self.request_id:
                continue
            lines += ["", *self._wait(wait)]
        if lines and self.request_id is None:
            left = sum(1 for wait in self.it.waits if wait.remedies is None)
            if left:
                lines += folded("", f"and {grouped(left)} more wait (--all, or --request ID)", self.width, 2)
        return [*lines, ""] if lines else lines

    def _wait(self, wait: Wait) -> list[str]:
        declares = (
            f"declares {grouped(wait.max_new_tokens)} more" if wait.max_new_tokens else "declares nothing"
        )
        lines = folded(
            "",
            f"why {wait.request_id} waits ({wait.state}, {counted(wait.tokens, 'token')}, {declares})",
            self.width,
            0,
        )
        said: list[str] = []
        attempt = wait.attempt
        if attempt is None:
            said.append(f"not tried: {wait.reason}" + (f", {wait.by}" if wait.by else ""))
        else:
            said.append(attempts.chunk(attempt))
            if attempt.hit is not None:
                said.append(attempts.hit(attempt.hit))
                said += attempts.hit_ends(attempt.hit, wait.lost, self.it.evictions_known)
            said += [f"needs {attempts.need(ask)}" for ask in attempt.groups if ask.needed]
            if attempt.outcome == "no_capacity":
                said.append(f"not now: {attempts.shortage(attempt)}")
        if wait.remedies is not None:
            ways = _ways(wait)
            said.append(
                "enters this round with " + ", or ".join(ways)
                if ways
                else "no larger pool, budget or batch that was tried, each alone, lets it into this round"
            )
        if wait.entered_round is not None:
            said.append(f"it entered in round {grouped(wait.entered_round)}")
        for line in said:
            lines += folded("", line, self.width, 2)
        return lines

    def _result(self) -> list[str]:
        it = self.it
        text = f"{counted(it.scheduled, 'operation')} scheduled"
        if self.request_id is not None:
            text = f"{self.request_id} is scheduled in this round"
            mine = [wait for wait in it.waits if wait.request_id == self.request_id]
            if not any(self.request_id in _ids(phase) for phase in it.phases):
                text = f"{self.request_id} has no turn in this round: it waits for an answer, or is not there"
            for wait in mine:
                text = f"{self.request_id} waits: {_why(wait)}{self._with(wait)}"
        elif it.waits:
            text += f"; {counted(len(it.waits), 'request')} left out, the first {it.waits[0].request_id}: "
            text += _why(it.waits[0]) + self._with(it.waits[0])
        return folded("RESULT", text, self.width, LABEL)

    def _with(self, wait: Wait) -> str:
        ways = _ways(wait) if wait.remedies is not None else []
        return f"; it enters with {ways[0]}" if ways else ""

    def _try(self) -> list[str]:
        lines: list[str] = []
        whole = self.it.pool_before.free + self.it.pool_before.cached + self.it.pool_before.held
        for wait in self.it.waits:
            ways = wait.remedies
            if ways is None:
                continue
            flags = [
                ("--pool-blocks", None if ways.extra_blocks is None else whole + ways.extra_blocks),
                ("--max-scheduled-tokens", ways.max_scheduled_tokens),
                ("--max-batch-size", ways.max_batch_size),
            ]
            for flag, value in flags:
                if value is not None:
                    lines += folded(
                        "try",
                        f"{flag} {value}   {wait.request_id} enters this round (tried; one less does not)",
                        self.width,
                        LABEL,
                    )
            break
        return lines


def _ids(phase: Phase) -> list[str]:
    return [one.request_id for one in phase.attempts] + [
        name for held in phase.held for name in held.request_ids
    ]


def _ways(wait: Wait) -> list[str]:
    ways = wait.remedies
    assert ways is not None
    said = []
    if ways.extra_blocks is not None:
        said.append(f"{counted(ways.extra_blocks, 'LCM block')} more")
    if ways.max_scheduled_tokens is not None:
        said.append(f"a budget of {counted(ways.max_scheduled_tokens, 'token')}")
    if ways.max_batch_size is not None:
        said.append(f"a batch of {grouped(ways.max_batch_size)}")
    if ways.max_new_tokens is not None:
        said.append(f"max_new_tokens <= {grouped(ways.max_new_tokens)}")
    return said


def _why(wait: Wait) -> str:
    if wait.attempt is None:
        return wait.reason + (f" ({wait.by})" if wait.by else "")
    if wait.attempt.outcome == "no_capacity":
        return f"not now, {attempts.shortage(wait.attempt)}"
    if wait.attempt.cut is not None and not wait.attempt.cut.tokens:
        return wait.attempt.cut.rule
    return attempts.OUTCOMES.get(wait.attempt.outcome, wait.attempt.outcome)


def _held(held: Held) -> str:
    by = f", {held.by}" if held.by else ""
    return f"not tried: {_names(held.request_ids)}: {held.reason}{by}"


def _candidate(one: Candidate) -> str:
    blocks = "" if one.releasable_blocks is None else f", frees {counted(one.releasable_blocks, 'LCM block')}"
    secured = (
        f"; secured {grouped(one.secured)} of {grouped(one.open)} open" if one.open else "; declares nothing"
    )
    return f"{one.request_id} ({one.state}, {counted(one.tokens, 'token')}{blocks}{secured})"


def _by_rank(one: Candidate) -> tuple[Any, ...]:
    """The order in which candidates are shown: prefills by size, then decodes by what they free."""
    if one.releasable_blocks is None:
        return (0, -one.tokens)
    return (1, -one.releasable_blocks, one.tokens, one.request_id)


def _role(it: RoundExplanation) -> str:
    """The engine's role; only a fused one mixes prefill and decode in a round, or does not."""
    if it.role == "Fused":
        return "fused, mixed" if it.mixed else "fused"
    return {"P": "prefill worker", "D": "decode worker"}[it.role]


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown + (f" and {grouped(len(names) - NAMED)} more" if len(names) > NAMED else "")


def _change(before: int, after: int) -> str:
    return grouped(before) if before == after else f"{grouped(before)} → {grouped(after)}"


def _group(before: PoolState, after: PoolState, group: str) -> str:
    now, then = before.groups[group], after.groups[group]
    return ", ".join(f"{_change(now[name], then[name])} {name}" for name in now) + " pages"
