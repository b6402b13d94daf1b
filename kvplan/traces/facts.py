"""Facts of a trace: its size, and what a prefix cache that never forgets would find.

Two definitions of that share. Both count *leading* hits only, a run from the start of the prompt that ends
at the first miss. Rows go in arrival order, and a row's prompt is in the cache once its own hits are
counted.

* By hash: hashes in the leading run, each seen in an earlier row, over all hash references. A partial last
  hash counts as one, and a prompt may hit whole. By this one the Mooncake conversation trace has 36.6 %,
  the synthetic one 64.0 %.
* By page, as an engine caches: full pages of P tokens in the leading run, each with the tokens that an
  earlier prompt has up to there, in tokens, over all prompt tokens. A prompt of n tokens hits (n - 1) // P
  pages at most, since its last token must be computed. The conversation trace has 37.3 % at 512 tokens a
  page and 37.4 % at 64: more than by hash, where a partial hash that misses weighs as much as a full one.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvplan.traces.errors import TraceError
from kvplan.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Totals of a trace. None: the trace does not say (`hash_*` without hashes, `hit_*` without prefixes)."""

    requests: int
    span_s: float
    distinct_arrivals: int
    sessions: int
    prompt_tokens: int
    output_tokens: int
    longest_prompt_tokens: int
    longest_output_tokens: int
    hash_references: int | None
    distinct_hashes: int | None
    hash_hit_share: float | None
    page_tokens: int
    hit_tokens: int | None
    hit_share: float | None


def trace_facts(trace: Trace, page_tokens: int = 64) -> TraceFacts:
    """Return the facts of `trace`, hits by page at `page_tokens` tokens a page."""
    table = trace.table
    prompt_tokens = int(table["prompt_tokens"].sum())
    hashes = _hashes(trace) if trace.hash_tokens is not None else None
    hit_tokens = int(page_hits(trace, page_tokens).sum()) * page_tokens if trace.has_prefixes else None
    return TraceFacts(
        requests=len(trace),
        span_s=float(table["arrival_s"][-1]),
        distinct_arrivals=table["arrival_s"].n_unique(),
        sessions=table["session_id"].drop_nulls().n_unique(),
        prompt_tokens=prompt_tokens,
        output_tokens=int(table["output_tokens"].sum()),
        longest_prompt_tokens=int(table["prompt_tokens"].to_numpy().max()),
        longest_output_tokens=int(table["output_tokens"].to_numpy().max()),
        hash_references=None if hashes is None else sum(map(len, hashes)),
        distinct_hashes=None if hashes is None else len(set().union(*hashes)),
        hash_hit_share=None if hashes is None else sum(_leading(hashes)) / sum(map(len, hashes)),
        page_tokens=page_tokens,
        hit_tokens=hit_tokens,
        hit_share=None if hit_tokens is None else hit_tokens / prompt_tokens,
    )


def page_hits(trace: Trace, page_tokens: int) -> NDArray[np.int64]:
    """Return how many leading pages of each row an earlier prompt has, by the definition above.

    Pages are told apart by a 64-bit digest of all tokens up to their end. Raises TraceError for no page.
    """
    if page_tokens < 1:
        raise TraceError(f"page_tokens {page_tokens} is given; 1 token or more is expected")
    longest = int(trace.table["prompt_tokens"].to_numpy().max()) // page_tokens
    random = np.random.default_rng(0)
    by_position = random.integers(1 << 62, size=page_tokens, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    by_page = random.integers(1 << 62, size=max(longest, 1), dtype=np.uint64)
    seen: set[int] = set()
    hits = np.zeros(len(trace), np.int64)
    for row in range(len(trace)):
        tokens = trace.prompt(row)
        pages = len(tokens) // page_tokens
        paged = tokens[: pages * page_tokens].reshape(pages, page_tokens).astype(np.uint64)
        digests = _mixed(paged @ by_position)
        prefixes = np.cumsum(_mixed(digests + by_page[:pages]), dtype=np.uint64)
        # With a prefix all shorter ones were seen, so the first miss can be searched for.
        hit = bisect_left(prefixes, True, key=lambda prefix: int(prefix) not in seen)
        seen.update(prefixes[hit:].tolist())
        hits[row] = min(hit, (len(tokens) - 1) // page_tokens)
    return hits


def _hashes(trace: Trace) -> list[list[int]]:
    """Return the hashes of each row, as the first token id that each stands for."""
    first, _, counts = trace.tokens.spans(trace.rows)
    parts = np.split(first, np.cumsum(counts)[:-1])
    return [part[part < trace.tokens.private_first].tolist() for part in parts]


def _leading(hashes: list[list[int]]) -> list[int]:
    """Return how many hashes of each row, from its start, an earlier row has."""
    seen: set[int] = set()
    found = []
    for row in hashes:
        found.append(next((place for place, name in enumerate(row) if name not in seen), len(row)))
        seen.update(row)
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(29))
