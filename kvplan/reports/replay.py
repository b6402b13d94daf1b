"""The report of a replay: text for people, JSON for programs. Functions of the run's summary alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text

from kvplan.replay.dead_end import DeadEnd, Stuck
from kvplan.replay.play import Ending
from kvplan.replay.run import RunSummary, TierAssumptions
from kvplan.replay.statistics import Spread
from kvplan.reports.replay_advice import advice
from kvplan.reports.replay_units import (
    counted,
    digits,
    duration,
    folded,
    grouped,
    percent,
    rounds_time,
    sparkline,
    step_words,
    tokens,
)

LABEL = 12
NAMED = 3
STUCK = 8


def replay_json(summary: RunSummary) -> str:
    """Return the summary as JSON with a last newline; names and order are those of the dataclasses."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2).decode() + "\n"


def replay_text(summary: RunSummary, width: int = 80) -> Text:
    """Return the report at `width` columns."""
    report = Text(overflow="ignore", no_wrap=True)
    for line in _Report(summary, width).lines():
        word = line.split(" ", 1)[0]
        style = {"RESULT": _result_style(summary), "try": "cyan", "warning": "yellow"}.get(word, "")
        report.append(line + "\n", style=style)
    return report


def _result_style(summary: RunSummary) -> str:
    return "bold green" if summary.ending is Ending.COMPLETE else "bold red"


@dataclass(frozen=True, slots=True)
class _Report:
    summary: RunSummary
    width: int

    def lines(self) -> list[str]:
        """Return the report's lines, top to bottom."""
        parts: list[Iterable[str]] = [
            self._header(),
            [""],
            self._requests(),
            self._tokens(),
            self._latency(),
            self._pool(),
            self._queue(),
            self._rounds(),
            self._retractions(),
            self._tiers(),
            self._dead_end(),
            self._warnings(),
            self._result(),
            *(self._row("try", [flag, why]) for flag, why in advice(self.summary)),
        ]
        return [line for part in parts for line in part]

    def _time(self) -> Callable[[float], str]:
        return rounds_time if self.summary.assumptions.step_time.lockstep else duration

    def _row(self, label: str, parts: Sequence[str], gap: str = "   ") -> list[str]:
        """Return `parts` behind a label, as many to a line as the width takes."""
        lines: list[str] = []
        line = label.ljust(LABEL)
        empty = True
        for part in parts:
            if not empty and len(line) + len(gap) + len(part) > self.width:
                lines += folded(line.rstrip(), self.width, LABEL)
                line, empty = " " * LABEL, True
            line += part if empty else gap + part
            empty = False
        return [*lines, *folded(line.rstrip(), self.width, LABEL)]

    def _header(self) -> list[str]:
        trace, given = self.summary.trace, self.summary.assumptions
        name = trace.sources[0].rsplit("/", 1)[-1]
        if len(trace.sources) > 1:
            name += f" and {len(trace.sources) - 1} more"
        kind = trace.format + (f", {trace.hash_tokens} tokens a hash" if trace.hash_tokens else "")
        over = f" over {duration(trace.span_s)}" if given.concurrency is None and trace.span_s else ""
        how = f", {given.concurrency} at a time" if given.concurrency is not None else ""
        if given.speed != 1 and given.concurrency is None:
            how += f", at {given.speed:g} times the speed"
        first = f"{name}: {counted(trace.requests, 'request')}{over} ({kind}){how}"
        timing = f"step        {step_words(given.step_time, given.step_time_given)}"
        lines = [*folded(first, self.width), *folded(timing, self.width, LABEL)]
        width = self.summary.config.get("decode_input_tokens")
        if isinstance(width, int) and width > 1:
            basis = "assumed, --accept-length" if given.accept_basis == "assumed" else given.accept_basis
            accepted = digits(given.accept_length)
            lines.append(f"decode      accepts {accepted} of {width} tokens a step ({basis})")
        if given.undeclared_requests:
            who = "no request" if given.undeclared_requests == trace.requests else "not every request"
            lines.append(f"budgets     {who} declares max_new_tokens (--max-new-tokens)")
        if given.tiers is not None:
            lines += self._row("tiers", _tier_words(given.tiers, self._time()))
        return lines

    def _requests(self) -> list[str]:
        requests = self.summary.figures.requests
        parts = [f"{grouped(requests.finished)} finished"]
        if requests.never_fit:
            parts.append(f"{grouped(requests.never_fit)} never fit")
        parts.append(f"{grouped(requests.unfinished)} unfinished")
        if requests.not_arrived:
            parts.append(f"{grouped(requests.not_arrived)} not arrived")
        lines = self._row("Requests", parts)
        if requests.never_fit:
            refused = requests.never_fit_requests
            named = [f"{one.request_id} needs {grouped(one.needed_tokens)}" for one in refused[:NAMED]]
            if len(refused) > NAMED:
                longest = max(refused, key=lambda one: one.needed_tokens)
                named.append(
                    f"and {grouped(len(refused) - NAMED)} more, the longest {grouped(longest.needed_tokens)}"
                )
            limit = f"the pool's limit is {counted(requests.limit_tokens, 'token')}"
            lines += self._row("  never fit", [", ".join(named) + ";", limit], " ")
        return lines

    def _tokens(self) -> list[str]:
        counts = self.summary.figures.tokens
        cached = f"{tokens(counts.prompt_from_cache)} from cache"
        if counts.cache_rate is None:
            cached = "cache hits unknown (the trace has no prefixes)"
        else:
            cached += f" ({percent(counts.cache_rate)} of prompt tokens)"
        parts = [f"{tokens(counts.prompt_computed)} prompt computed", cached]
        if self.summary.figures.retractions.count:
            parts.append(
                f"{tokens(counts.computed_again)} computed again after retraction "
                f"({percent(counts.recomputed_share)} of prefill)"
            )
            parts.append(f"{tokens(counts.from_cache_again)} back from cache")
        if counts.replayed:
            parts.append(f"{tokens(counts.replayed)} fed again for replayable groups")
        parts.append(f"{tokens(counts.generated)} generated")
        return self._row("Tokens", parts)

    def _latency(self) -> list[str]:
        latency, show = self.summary.figures.latency, self._time()
        rows: list[tuple[str, Spread | None]] = [
            ("first token", latency.first_token_s),
            ("per token", latency.per_output_token_s),
            ("whole", latency.end_to_end_s),
        ]
        if latency.first_token_s is None:
            return ["Latency     no request finished"]
        lines = [f"{'Latency':13}{'p50':>12}{'p90':>12}{'p99':>12}"]
        for name, values in rows:
            if values is not None:
                cells = "".join(f"{show(value):>12}" for value in (values.p50, values.p90, values.p99))
                lines.append(f"  {name:11}{cells}")
        return lines

    def _pool(self) -> list[str]:
        pool = self.summary.figures.pool
        share = pool.blocks or 1
        held, cached, free = (pool.mean_held / share, pool.mean_cached / share, pool.mean_free / share)
        return self._row(
            "Pool",
            [
                f"peak {grouped(pool.peak_held)} of {grouped(pool.blocks)} blocks held",
                sparkline(pool.held_over_time, pool.blocks),
                f"on average held {percent(held)}, cache {percent(cached)}, free {percent(free)}",
            ],
        )

    def _queue(self) -> list[str]:
        queue = self.summary.figures.queue
        parts = [f"p50 {grouped(queue.p50)}, max {grouped(queue.max)}"]
        if queue.max:
            parts.append(sparkline(queue.waiting_over_time, queue.max))
        parts.append(f"running at most {grouped(queue.max_running)}")
        return self._row("Queue", parts)

    def _rounds(self) -> list[str]:
        rounds = self.summary.figures.rounds
        kinds = [(rounds.decode, "decode"), (rounds.mixed, "mixed"), (rounds.prefill, "prefill")]
        kinds.append((rounds.empty, "empty"))
        parts = [", ".join(f"{grouped(count)} {kind}" for count, kind in kinds if count)]
        if rounds.skipped:
            parts.append(f"({grouped(rounds.skipped)} of them repeat others and were not played)")
        return self._row("Rounds", [f"{grouped(rounds.total)}:", *parts], " ")

    def _retractions(self) -> list[str]:
        retractions, show = self.summary.figures.retractions, self._time()
        if not retractions.count:
            return ["Retractions none"]
        parts = [
            f"{grouped(retractions.count)} of {counted(retractions.requests, 'request')}; worst "
            f"{retractions.worst_request}, {counted(retractions.worst_count, 'time')}",
            sparkline(retractions.over_time),
            ", ".join(f"{grouped(count)} {_words(state)}" for state, count in retractions.by_state.items()),
        ]
        if retractions.first_s is not None and retractions.last_s is not None:
            parts.append(f"from {show(retractions.first_s)} to {show(retractions.last_s)}")
        return self._row("Retractions", parts)

    def _tiers(self) -> list[str]:
        tiers = self.summary.figures.tiers
        if tiers is None:
            return []
        parts = [
            f"{counted(tiers.pages_written, 'page')} written",
            f"{counted(tiers.pages_loaded, 'page')} read back",
            f"{tokens(tiers.tokens_loaded)} not computed again",
        ]
        if tiers.saved_s:
            parts.append(f"(they would have taken {duration(tiers.saved_s)} of step time)")
        if tiers.pages_prefetched:
            parts.append(f"{counted(tiers.pages_prefetched, 'page')} out of storage")
        if tiers.loads_failed:
            parts.append(f"{counted(tiers.loads_failed, 'load')} failed")
        return self._row("Host tier", parts)

    def _dead_end(self) -> list[str]:
        dead_end = self.summary.dead_end
        if dead_end is None:
            return []
        lines = ["", *folded(self._dead_end_title(dead_end), self.width)]
        for request in dead_end.requests[:STUCK]:
            lines += folded(f"  {_stuck(request)}", self.width, 4)
        if len(dead_end.requests) > STUCK:
            lines.append(f"  and {counted(len(dead_end.requests) - STUCK, 'more request')}")
        return [*lines, ""]

    def _dead_end_title(self, dead_end: DeadEnd) -> str:
        if dead_end.kind == "stall":
            return "Why nothing goes on (nothing is in flight, no request is to come):"
        return "What goes round, and why each cannot go on:"

    def _warnings(self) -> list[str]:
        lines: list[str] = []
        trouble = self.summary.figures.thrashing
        show = self._time()
        if trouble is not None and self.summary.dead_end is None:
            lines += self._row(
                "warning",
                [
                    f"crawl: {percent(trouble.recomputed_share)} of prefill from {show(trouble.start_s)} to "
                    f"{show(trouble.end_s)} is rework",
                    f"({counted(trouble.retractions, 'retraction')}, "
                    f"{counted(trouble.generated_tokens, 'token')} generated)",
                ],
                " ",
            )
        for warning in self.summary.trace.warnings:
            lines += folded(f"{'warning':{LABEL}}{warning}", self.width, LABEL)
        return lines

    def _result(self) -> list[str]:
        figures, show = self.summary.figures, self._time()
        requests = figures.requests
        left = requests.unfinished + requests.not_arrived
        at = f"in round {grouped(figures.rounds.total)}, at {show(figures.duration_s)}"
        dead_end = self.summary.dead_end
        if dead_end is not None:
            stuck = counted(requests.unfinished, "request")
            if dead_end.kind == "stall":
                text = f"stall {at}: {stuck} left, nothing can be scheduled and nothing will change that"
            else:
                text = (
                    f"livelock {at}: {stuck} left, the same {counted(dead_end.period_rounds, 'round')} "
                    "again and again without a token"
                )
        elif self.summary.ending is Ending.ROUND_LIMIT:
            text = f"stopped {at}: the limit of rounds; {grouped(left)} unfinished"
        elif self.summary.ending is Ending.INTERRUPTED:
            text = f"interrupted {at}; {grouped(left)} unfinished"
        else:
            who = "all requests"
            if requests.never_fit:
                who = "all requests that fit" if requests.finished else "no request fits"
            text = f"{who} finished in {show(figures.duration_s)}"
            if not self.summary.assumptions.step_time.lockstep:
                text += f"; {digits(figures.output_tokens_per_s)} output tokens/s"
            if requests.never_fit:
                text += f"; {grouped(requests.never_fit)} never fit"
                if not requests.finished:
                    text = f"no request fits: each needs more than {counted(requests.limit_tokens, 'token')}"
        return folded(f"{'RESULT':{LABEL}}{text}", self.width, LABEL)


def _tier_words(tiers: TierAssumptions, show: Callable[[float], str]) -> list[str]:
    """Return what is assumed of the host tier's links and of storage, in parts."""
    ways = (
        ("write-backs", tiers.write_back_latency_s, tiers.write_back_bytes_per_s),
        ("load-backs", tiers.load_back_latency_s, tiers.load_back_bytes_per_s),
    )
    if not any(latency or bandwidth for _, latency, bandwidth in ways):
        parts = ["transfers take no time (assumed; --load-back-gbps, --device-costs)"]
    else:
        parts = [_link_words(*way, show) for way in ways]
    if tiers.storage_requests is not None:
        parts.append(f"storage holds {counted(tiers.storage_requests, 'prompt')} at the start")
    elif tiers.storage_share:
        parts.append(f"storage holds {percent(tiers.storage_share)} of prompts at the start")
    if tiers.storage_failure_rate:
        parts.append(f"{percent(tiers.storage_failure_rate)} of its loads fail")
    return parts


def _link_words(name: str, latency: float, bandwidth: float | None, show: Callable[[float], str]) -> str:
    terms = [f"{digits(bandwidth / 1e9)} GB/s"] if bandwidth else []
    terms += [show(latency)] if latency else []
    return f"{name} {' + '.join(terms)}" if terms else f"{name} take no time (assumed)"


def _words(state: str) -> str:
    """Return an engine's name of a state as words: PrefillDone, prefill done."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in state).strip()


def _stuck(request: Stuck) -> str:
    """Return who a stuck request is and what keeps it."""
    progress = f"{counted(request.prompt_tokens, 'prompt token')}"
    progress += f", {grouped(request.generated_tokens)} of {grouped(request.output_tokens)} generated"
    if request.retractions:
        progress += f", retracted {counted(request.retractions, 'time')}"
    who = f"{request.request_id} ({_words(request.state)}; {progress})"
    needs = [
        f"{counted(group.needed_pages, 'page')} of {group.group_id} ({grouped(group.free_pages)} free, "
        f"{grouped(group.evictable_pages)} evictable)"
        for group in request.groups
        if group.needed_pages
    ]
    ahead = (
        "its next token needs"
        if request.next_tokens == 1
        else (f"its next {grouped(request.next_tokens)} tokens need")
    )
    if request.fits or not needs:
        why = "fits, but its turn does not come" if request.fits else request.reason
    else:
        why = f"{ahead} {' and '.join(needs)}"
    if request.exempt:
        why += "; it may not be retracted"
    if request.retracted_for:
        others = [name for name in request.retracted_for if name != request.request_id]
        for_whom = ", ".join(others) or "its own next chunk"
        why += f"; retracted for {for_whom} each time round"
    if request.by_runtime:
        why = "retracted by the runtime each time round (a load failed, or it was forced)"
    if request.never_ends:
        whole = grouped(request.prompt_tokens + request.output_tokens)
        why += f"; can never end, {whole} tokens are more than the pool admits of one request"
    return f"{who}: {why}"
