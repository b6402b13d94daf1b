"""An attempt to schedule a request, in words: the journal's figures and rules, none worked out anew."""

from __future__ import annotations

from kvplan.explain.explanation import LostPage
from kvplan.reports.replay_units import counted, grouped
from kvplan.scheduler.journal import Attempt, GroupAsk, Hit

OUTCOMES = {
    "scheduled": "scheduled",
    "incomplete": "scheduled, goes on next round",
    "no_capacity": "not now",
    "no_tokens": "no chunk",
    "no_slot": "no free request slot",
}


def chunk(attempt: Attempt) -> str:
    """Where the attempt's chunk begins and ends, and what cut it."""
    cut = attempt.cut
    if cut is None:
        return attempt.kind
    span = (
        f"{grouped(cut.first)}..{grouped(cut.first + cut.tokens)} of {grouped(cut.first + cut.rest)} tokens"
    )
    rule = "" if cut.rule == "completes the prompt" and cut.tokens == cut.rest else f", {cut.rule}"
    if "budget" in cut.rule:
        rule += f" ({counted(cut.budget, 'token')})"
    return f"{attempt.kind} {span}{rule}"


def hit(found: Hit) -> str:
    """What was found cached, of what could have been."""
    if not found.limit:
        return f"may match nothing ({found.limit_rule})"
    tiers = f"{grouped(found.device)} tokens on the device"
    if found.host > found.device:
        tiers += f", {grouped(found.host)} with the host"
    text = f"hit {tiers}, of {grouped(found.limit)} that it may match"
    if max(found.device, found.host) >= found.limit:
        text += f" ({found.limit_rule})"
    if found.promotion:
        text += (
            f"; full groups alone reach {grouped(found.closed)}, so the chunk is to end at the promotion "
            f"boundary {grouped(found.promotion)}"
        )
    return text


def hit_ends(found: Hit, lost: list[LostPage], evictions_known: bool) -> list[str]:
    """Why the hit is no longer: per group, as the matching went."""
    if max(found.device, found.host) >= found.limit:
        return []
    lines = []
    by_page = {(page.tier, page.group_id, page.page): page for page in lost}
    for step in found.steps:
        if step.boundary >= step.bound:
            continue
        if step.missing_key is None:
            lines.append(
                f"{step.group_id} ({step.tier}) keeps no window or state that ends between prefix pages "
                f"{grouped(step.boundary)} and {grouped(step.bound)}"
            )
            continue
        page = by_page.get((step.tier, step.group_id, step.extent_slots))
        fate = _fate(page, evictions_known)
        lines.append(f"{step.group_id} ({step.tier}) misses page {grouped(step.extent_slots)}{fate}")
    return lines


def _fate(page: LostPage | None, evictions_known: bool) -> str:
    if page is None or not evictions_known:
        return ""
    if page.evicted_round is None:
        return ", never published until then"
    whom = f" for {page.evicted_for}" if page.evicted_for else ""
    return f", evicted in round {grouped(page.evicted_round)}{whom}"


def need(ask: GroupAsk) -> str:
    """What a group was asked for, and what it had."""
    parts = [f"{counted(ask.growth_tokens, 'token')} of growth"]
    if ask.room_tokens:
        parts[0] += f" − {grouped(ask.room_tokens)} that its pages have room for"
    if ask.reserve_tokens:
        parts.append(f"{grouped(ask.reserve_tokens)} in reserve ({ask.reserve_rule})")
    if ask.host_loads:
        parts.append(f"{counted(ask.host_loads, 'page')} to load from the host")
    has = f"{grouped(ask.free)} free + {grouped(ask.evictable)} evictable"
    if ask.own_expired:
        has += f" + {grouped(ask.own_expired)} of its own that expired"
    if ask.own_hits:
        has += f"; {grouped(ask.own_hits)} that it hits itself are exempt"
    return f"{counted(ask.needed, 'page')} of {ask.group_id}: {' + '.join(parts)}; there are {has}"


def shortage(attempt: Attempt) -> str:
    """Why an admission did not fit, in LCM blocks."""
    packed = any(ask.pages_per_block > 1 for ask in attempt.groups)
    slots = "slots that are free or could be" if packed else "free slots"
    return (
        f"it needs {counted(attempt.blocks_short, 'empty LCM block')} beyond {slots}, "
        f"{grouped(attempt.blocks_reachable)} {'is' if attempt.blocks_reachable == 1 else 'are'} empty or could be"
    )


def evictions(attempt: Attempt) -> str:
    """What was evicted for it, by group, in the order's own figures."""
    groups: dict[tuple[str, str], list[int]] = {}
    for page in attempt.evicted:
        groups.setdefault((page.group_id, page.tier), []).append(page.epoch)
    parts = []
    for (group, tier), epochs in groups.items():
        span = f"epoch {grouped(min(epochs))}"
        if max(epochs) != min(epochs):
            span = f"epochs {grouped(min(epochs))}..{grouped(max(epochs))}"
        parts.append(f"{counted(len(epochs), 'page')} of {group} ({tier}, {span})")
    text = "evicts " + ", ".join(parts)
    return text + (f"; {grouped(attempt.spared)} more were considered and spared" if attempt.spared else "")
