"""How a prefill chunk is cut: pure token arithmetic (engine.md §8)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ChunkRules:
    """What of a configuration decides how chunks are cut; all in tokens."""

    prefix_granularity: int
    replay_window: int  # W: 0 without a replayable group
    has_state: bool

    @property
    def prefill_reserve(self) -> int:
        """Budget that a mixed decode batch leaves for a pending prefill."""
        state = self.prefix_granularity if self.has_state else 0
        replay = (
            self.replay_window + max(self.replay_window, self.prefix_granularity) if self.replay_window else 0
        )
        return max(state, replay)


def align(first: int, unscheduled: int, budget: int, page: int, promotion: int) -> int:
    """A chunk shortened to end at a page or promotion boundary, unless it completes the prompt."""
    tokens = min(unscheduled, budget)
    if promotion > first:
        tokens = min(tokens, promotion - first)
    if tokens == unscheduled:
        return tokens
    if first % page:
        rest = page - first % page
        return rest if budget >= rest else 0
    return tokens // page * page


def keep_final_window(tokens: int, unscheduled: int, window: int) -> int:
    """A chunk shortened so that the prompt's final chunk is not below the replay window."""
    rest = unscheduled - tokens
    if not window or not rest or rest >= window:
        return tokens
    return max(0, unscheduled - window)


class Rule(StrEnum):
    """What decided where a chunk ends."""

    COMPLETES = "completes the prompt"
    BUDGET = "cut by the budget"
    PAGE = "cut to end on a prefix page"
    PROMOTION = "cut at the promotion boundary"
    FINAL_WINDOW = "cut so that the final chunk is not below the replay window"
    NO_BUDGET = "no budget left"
    NO_PAGE = "the budget does not reach the next prefix page"
    NO_WINDOW = "what is left would be below the replay window"


def cut_chunk(
    rules: ChunkRules, first: int, hit: bool, unscheduled: int, budget: int, promotion: int
) -> tuple[int, Rule]:
    """Tokens of the next chunk, 0 if none can be scheduled with this budget; and the rule that decided.

    ``first`` is the first token to compute, ``hit`` whether this is the first chunk behind a prefix hit,
    which feeds the replay window again out of the same budget.
    """
    window = rules.replay_window
    if hit:
        budget -= min(window, first)
    if budget <= 0:
        return 0, Rule.NO_BUDGET
    plain = min(budget, unscheduled)
    tokens, rule = plain, Rule.COMPLETES if plain == unscheduled else Rule.BUDGET
    if rules.has_state or promotion > 0:
        tokens = align(first, unscheduled, budget, rules.prefix_granularity, promotion)
        if not tokens:
            return 0, Rule.NO_PAGE
        if tokens < plain:
            rule = Rule.PROMOTION if first + tokens == promotion else Rule.PAGE
    kept = keep_final_window(tokens, unscheduled, window)
    if not kept and tokens < plain:
        # No chunk end can be at the promotion boundary and leave a whole window: the boundary yields.
        kept = keep_final_window(plain, unscheduled, window)
        tokens, rule = plain, Rule.COMPLETES if plain == unscheduled else Rule.BUDGET
    if not kept:
        return 0, Rule.NO_WINDOW
    return kept, rule if kept == tokens else Rule.FINAL_WINDOW


def chunk_tokens(
    rules: ChunkRules, first: int, hit: bool, unscheduled: int, budget: int, promotion: int
) -> int:
    """Tokens of the next chunk, as ``cut_chunk`` cuts it."""
    return cut_chunk(rules, first, hit, unscheduled, budget, promotion)[0]
