"""A request in flight, and the account of what was computed for it."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Flight:
    """What the replay knows of a request between its arrival and its end.

    `frontier` is the first position whose KV was never there yet, computed or found in cache: below it,
    computing is done again. `computed`: where the last prefill window ended; `prefill_size`: where the last
    one of this admission will. `resident`: it holds pages. Times are in ns, -1 = not yet.
    """

    row: int
    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrived_ns: int
    generated: int = 0
    steps: int = 0
    ids: list[int] = field(default_factory=list)
    resident: bool = False
    computed: int = 0
    prefill_size: int = 0
    frontier: int = 0
    admitted_ns: int = -1
    first_token_ns: int = -1
    finished_ns: int = -1
    retractions: int = 0
    from_cache: int = 0
    cache_again: int = 0
    computed_prompt: int = 0
    computed_output: int = 0
    computed_again: int = 0

    def hit(self, tokens: int) -> None:
        """Account for an admission that found the first `tokens` tokens in the cache."""
        fresh = max(tokens - self.frontier, 0)
        self.from_cache += fresh
        self.cache_again += tokens - fresh
        self.frontier = max(self.frontier, tokens)
        self.computed = tokens

    def prefill(self, begin: int, end: int) -> None:
        """Account for a chunk that computes the positions from `begin` up to `end`.

        Those below the frontier are computed again; of the others, those below the prompt's end are prompt,
        the rest generated tokens that a readmission feeds back.
        """
        fresh = min(max(begin, self.frontier), end)
        self.computed_again += fresh - begin
        prompt = max(min(end, self.prompt_tokens) - fresh, 0)
        self.computed_prompt += prompt
        self.computed_output += end - fresh - prompt
        self.frontier = max(self.frontier, end)
        self.computed = end

    def retracted(self) -> int:
        """Account for a retraction; return the tokens whose KV is dropped (engine.md §9)."""
        dropped = self.computed
        if dropped >= self.prefill_size:  # decoding: every token but the last is computed
            dropped = self.prompt_tokens + self.generated - 1
        self.frontier = max(self.frontier, dropped)
        self.resident = False
        self.computed = 0
        self.retractions += 1
        return dropped
