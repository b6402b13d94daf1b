"""What prompts found cached and what they missed for: text for people, JSON for programs."""

from __future__ import annotations

import msgspec
from rich.text import Text

from kvplan.explain.prefix_story import PrefixStory
from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import counted, digits, grouped, percent, tokens

LABEL = 8
EVICTORS = 3


def prefix_json(story: PrefixStory, unfinished: bool = False) -> str:
    """Everything, names as in the dataclass, and whether the run is ``unfinished``."""
    value = {**msgspec.to_builtins(story), "unfinished": unfinished}
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def prefix_text(story: PrefixStory, width: int, warning: str | None = None) -> Text:
    """The story at ``width`` columns, with a ``warning`` about the run."""
    whole = story.prompt_tokens or 1
    lines = folded(
        "",
        f"{counted(story.admissions, 'request')} admitted, {tokens(story.prompt_tokens)} prompt tokens",
        width,
        0,
    )
    rows = [("hit on the device", story.device_tokens, story.admissions)]
    if story.host_tokens:
        rows.append(("hit on the host", story.host_tokens, story.admissions))
    rows += [(f"missed: {miss.cause}", miss.tokens, miss.requests) for miss in story.misses]
    lines += table(
        [
            Column("", [name for name, _, _ in rows]),
            Column("tokens", [grouped(count) for _, count, _ in rows], right=True),
            Column("share", [percent(count / whole) for _, count, _ in rows], right=True),
            Column("requests", [grouped(requests) for _, _, requests in rows], right=True, drop=1),
        ],
        width,
    )
    if story.group_hits:
        lines += ["", *_hits(story, width)]
    if story.groups:
        lines += ["", *_groups(story, width)]
    if story.full_groups_tokens > story.device_tokens + story.host_tokens:
        alone = f"{tokens(story.full_groups_tokens)} tokens ({percent(story.full_groups_tokens / whole)})"
        text = f"full groups alone could have served {alone}: a hit ends where every group can serve it"
        lines += folded("", text, width, 0)
    lines += _evictions(story, width)
    if story.readmissions:
        text = (
            f"{counted(story.readmissions, 'readmission')} of {tokens(story.readmission_tokens)} tokens: "
            f"{tokens(story.readmission_device_tokens)} back from the device, "
            f"{tokens(story.readmission_host_tokens)} from the host"
        )
        lines += ["", *folded("", text, width, 0)]
    lines += ["", *_result(story, width)]
    lines += folded("warning", warning, width, LABEL) if warning else []
    report = Text(overflow="ignore", no_wrap=True)
    for line in lines:
        report.append(line + "\n", style="bold" if line.startswith("RESULT") else "")
    return report


def _hits(story: PrefixStory, width: int) -> list[str]:
    hits = story.group_hits or []
    return table(
        [
            Column("hit in", [hit.group_id for hit in hits]),
            Column("tier", [hit.tier for hit in hits]),
            Column("pages", [grouped(hit.pages) for hit in hits], right=True),
            Column(
                "tokens in them",
                ["snapshots" if hit.tokens is None else grouped(hit.tokens) for hit in hits],
                right=True,
            ),
        ],
        width,
    )


def _groups(story: PrefixStory, width: int) -> list[str]:
    return table(
        [
            Column("what ended hits", [group.cause for group in story.groups]),
            Column("group", [group.group_id for group in story.groups]),
            Column("requests", [grouped(group.admissions) for group in story.groups], right=True),
        ],
        width,
    )


def _evictions(story: PrefixStory, width: int) -> list[str]:
    if not story.evictions:
        return ["", *folded("", "no page was evicted", width, 0)]
    parts = [f"{grouped(one.pages)} of {one.group_id} ({one.tier})" for one in story.evictions]
    lines = ["", *folded("", f"pages evicted: {', '.join(parts)}", width, 0)]
    for one in story.evictors[:EVICTORS]:
        pages, hits = counted(one.pages_evicted, "page"), counted(one.hits_ended, "hit")
        text = f"for {one.request_id}: {pages}, which ended {hits}"
        lines += folded("", text, width, 2)
    if story.median_absence_rounds is not None:
        gone = digits(story.median_absence_rounds)
        text = f"an evicted page that ended a hit had been gone for {gone} rounds (median)"
        lines += folded("", text, width, 2)
    return lines


def _result(story: PrefixStory, width: int) -> list[str]:
    whole = story.prompt_tokens or 1
    hit = story.device_tokens + story.host_tokens
    if not story.known:
        text = "unknown: the trace does not say what its prompts share"
        return folded("RESULT", text, width, LABEL)
    text = (
        f"{percent(hit / whole)} of prompt tokens hit; an infinite cache would serve "
        f"{percent(story.infinite_tokens / whole)}, if each prompt came after all before it were computed"
    )
    evicted = sum(miss.tokens for miss in story.misses if miss.cause == "evicted")
    if evicted:
        text += f"; {tokens(evicted)} tokens were evicted before they were wanted again"
    return folded("RESULT", text, width, LABEL)
