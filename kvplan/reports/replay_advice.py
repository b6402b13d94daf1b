"""What can be done about a replay's trouble: flags that can be pasted, and what each is for."""

from kvplan.replay.run import RunSummary


def advice(summary: RunSummary) -> list[tuple[str, str]]:
    """Return (flags, what they do) for what went wrong in a replay; none when nothing did."""
    lines: list[tuple[str, str]] = []
    figures = summary.figures
    if figures.requests.blocks_for_all is not None:
        longest = figures.requests.tokens_for_all
        if longest is None:  # kept by a build that did not tell
            longest = max(one.needed_tokens for one in figures.requests.never_fit_requests)
        lines.append(
            (
                f"--pool-blocks {figures.requests.blocks_for_all}",
                f"the longest request ({longest:,} tokens) fits",
            )
        )
    # Retractions that the runtime asks for have nothing to do with room.
    trouble = figures.retractions.count > figures.retractions.by_runtime or (
        summary.dead_end is not None and not figures.retractions.by_runtime
    )
    if trouble and summary.assumptions.undeclared_requests:
        lines.append(
            ("--max-new-tokens output", "each request declares what it generates, and room is kept for it")
        )
    return lines
