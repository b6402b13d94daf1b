"""What became of the requests that a pool was sized for, in words."""

from __future__ import annotations

from rich.text import Text

from kvplan.replay.proof import Proof
from kvplan.reports.columns import folded
from kvplan.reports.dead_end import dead_end_lines
from kvplan.reports.replay_units import counted, grouped
from kvplan.reports.sizing import styled
from kvplan.reports.sizing_units import blocks


def proof_text(proof: Proof, width: int = 80) -> Text:
    """Return the account of a proof at ``width`` columns."""
    tokens = proof.prompt_tokens + proof.output_tokens
    played = (
        f"replayed {counted(proof.requests, 'request')} of {grouped(tokens)} tokens, {grouped(proof.output_tokens)} of "
        f"them generated and declared, submitted together to {blocks(proof.usable_blocks)}: {_came(proof)}"
    )
    lines = folded("proof", played, width)
    if proof.dead_end is not None:
        lines += [f"        {line}" for line in dead_end_lines(proof.dead_end, width - 8)]
    return styled(lines)


def _came(proof: Proof) -> str:
    if proof.never_fit:
        return "they never fit"
    all_of = "it finishes" if proof.requests == 1 else f"all {grouped(proof.requests)} finish"
    if proof.finished < proof.requests:
        all_of = f"{grouped(proof.finished)} of {grouped(proof.requests)} finish, the others never do"
    again = counted(proof.retractions, "retraction") if proof.retractions else "no retraction"
    waits = "none waits for a page"
    if proof.waited is None or proof.longest_wait_rounds is None:
        waits = f"the last begins in round {grouped(proof.last_start_round)}"
    elif proof.waited:
        waits = f"{grouped(proof.waited)} waited for pages, the longest {counted(proof.longest_wait_rounds, 'round')}"
    rounds = counted(proof.rounds, "round")
    return f"{all_of}, {again}; at most {grouped(proof.most_at_once)} at once, {waits}; {rounds} in all"
