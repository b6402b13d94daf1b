"""Counts over all rounds of a replay."""

from collections import Counter
from dataclasses import dataclass, field

SUMS = (
    "busy_ns",
    "prefill_tokens",
    "replayed_tokens",
    "generated_tokens",
    "decode_steps",
    "runtime_retractions",
    "pages_written",
    "pages_loaded",
    "pages_prefetched",
    "tokens_loaded",
    "loads_failed",
)


@dataclass(slots=True)
class Totals:
    """Rounds by kind, forwards' nanoseconds, prefill tokens (re-fed ones included) and retractions.

    `replayed_tokens` are those that a hit of a replayable group feeds again (engine.md §8). Pages are
    *written* to the host and *loaded* back from it, *prefetched* ones out of storage first; `tokens_loaded`
    are the prompt positions that a load brought back and no chunk had to compute. `runtime_retractions` are
    those that the runtime asked for, not the scheduler.
    """

    rounds: Counter[str] = field(default_factory=Counter)
    busy_ns: int = 0
    prefill_tokens: int = 0
    replayed_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    retractions: Counter[str] = field(default_factory=Counter)
    skipped_rounds: int = 0
    runtime_retractions: int = 0
    pages_written: int = 0
    pages_loaded: int = 0
    pages_prefetched: int = 0
    tokens_loaded: int = 0
    loads_failed: int = 0

    def add_round(self, prefill_requests: int, decode_requests: int, step_ns: int) -> None:
        """Count a round by what its batch holds."""
        if prefill_requests:
            kind = "mixed" if decode_requests else "prefill"
        else:
            kind = "decode" if decode_requests else "empty"
        self.rounds[kind] += 1
        self.busy_ns += step_ns
        self.decode_steps += decode_requests

    def copy(self) -> "Totals":
        """Return these counts as they are now."""
        return Totals(
            Counter(self.rounds),
            self.busy_ns,
            self.prefill_tokens,
            self.replayed_tokens,
            self.generated_tokens,
            self.decode_steps,
            Counter(self.retractions),
            self.skipped_rounds,
            self.runtime_retractions,
            self.pages_written,
            self.pages_loaded,
            self.pages_prefetched,
            self.tokens_loaded,
            self.loads_failed,
        )

    def repeat(self, since: "Totals", times: int) -> None:
        """Count what was added since `since` that many times more: rounds that repeat exactly."""
        for kind, count in (self.rounds - since.rounds).items():
            self.rounds[kind] += count * times
            self.skipped_rounds += count * times
        for state, count in (self.retractions - since.retractions).items():
            self.retractions[state] += count * times
        for name in SUMS:
            now = getattr(self, name)
            setattr(self, name, now + (now - getattr(since, name)) * times)
