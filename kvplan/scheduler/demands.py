"""What each group asks of an admission, and what it holds beyond the chunk (engine.md §5, §8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.scheduler.cache.groups import Group
from kvplan.scheduler.config import GroupKind

SAFE_STEPS = 4096  # decode steps that an admission pays for in advance, a window (design note §4)
DENSE = -1


@dataclass(slots=True)
class Demand:
    """One group's demand, in tokens: dense growth by ``tokens``, or a sparse suffix that ends at ``tokens``
    and has pages from block ``first`` on."""

    tokens: int
    reserve: int = 0
    first: int = DENSE

    def pages(self, granularity: int, available: int) -> int:
        """Fresh pages that it takes, with ``available`` unconsumed tokens at the table's tail (§5)."""
        if self.first >= 0:
            return (self.tokens + self.reserve - 1) // granularity - self.first + 1
        wanted = self.tokens + self.reserve - available
        return -(-wanted // granularity) if wanted > 0 else 0


@dataclass(slots=True)
class Reserve:
    """What a prefill admission holds beyond its chunk, in tokens, before each group's rule (§8)."""

    decode: int  # on the completing chunk the decode width, else 0
    headroom: int  # of the prompt: the rest of it and of the generation to be covered
    state_growth: int  # width that a state group reserves growth for; 0 for none

    def of(self, group: Group) -> int:
        """The tokens one group reserves, by its retention."""
        return self.rule(group)[0]

    def rule(self, group: Group) -> tuple[int, str]:
        """The tokens one group reserves, and what for."""
        if group.kind == GroupKind.STATE:
            if not self.state_growth:
                return 0, ""
            return max(group.granularity, self.state_growth), "growth of the state"
        if group.kind == GroupKind.SLIDING or self.decode > self.headroom:
            return self.decode, "decode slot" if self.decode else ""
        return self.headroom, "headroom: rest of the prompt and of the generation" if self.headroom else ""


def headroom_tokens(remaining_new_tokens: int, retractions: int) -> int:
    """Generated tokens that an admission secures (design note §4)."""
    return min(remaining_new_tokens, SAFE_STEPS * (1 + retractions))


def coverage(max_new_tokens: int, retractions: int, generated_at_admission: int) -> tuple[int, int]:
    """Generated tokens that an admission secures, and those that were open then (0 if undeclared) (§9)."""
    return SAFE_STEPS * (1 + retractions), max(0, max_new_tokens - generated_at_admission)


def covers_generation(max_new_tokens: int, retractions: int, generated_at_admission: int) -> bool:
    """Whether the admission secured the whole generation then open: such a request is no victim (§9)."""
    secured, open_tokens = coverage(max_new_tokens, retractions, generated_at_admission)
    return max_new_tokens > 0 and secured >= open_tokens


def local_chunk(
    groups: Sequence[Group], start: int, tokens: int, prefix: int, reserve: Reserve, replay: int = 0
) -> list[Demand]:
    """The demands of a local chunk of ``tokens`` from ``start`` (§8); ``replay`` above 0 for a hit's first
    chunk is the replay window before ``start`` that replayable groups materialise (§7.1)."""
    demands = []
    for group in groups:
        held = reserve.of(group)
        if group.kind == GroupKind.STATE:
            end = start + tokens
            boundary = end // prefix * prefix
            last = boundary if boundary > start else end
            demands.append(Demand(end, held, (last - 1) // group.granularity))
        elif group.replayable and replay:
            demands.append(Demand(start + tokens, held, (start - replay) // group.granularity))
        else:
            demands.append(Demand(tokens, held))
    return demands


def remote_landing(groups: Sequence[Group], hit: int, prompt: int, reserve: Reserve) -> list[Demand]:
    """The demands of a prompt that a peer prefills, all of it at once (§8)."""
    demands = []
    for group in groups:
        held = reserve.of(group)
        g = group.granularity
        if group.kind == GroupKind.STATE:
            demands.append(Demand(prompt, held, (prompt - 1) // g))
        elif group.kind == GroupKind.SLIDING:
            demands.append(Demand(prompt, held, max(hit // g, max(0, prompt - group.window + 1) // g)))
        else:
            demands.append(Demand(prompt - hit, held))
    return demands


def decode_step(groups: Sequence[Group], tokens: int) -> list[Demand]:
    """The demands of a decode step: dense growth, no reserve (§8)."""
    return [Demand(tokens) for _ in groups]
