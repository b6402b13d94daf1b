"""Reports of what a backend did: text for people, JSON for programs. Functions of the result alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from kvplan.backends.allocator import AllocatorReport
from kvplan.backends.check import CheckResult
from kvplan.backends.device_file import KINDS, Cost, DeviceCosts, Sample
from kvplan.backends.fit import BlocksFit
from kvplan.reports.sizing import styled
from kvplan.reports.sizing_units import size

if TYPE_CHECKING:
    from rich.text import Text

LABEL = 12


def check_text(result: CheckResult, width: int = 80) -> Text:
    """The report of ``check-plan`` at ``width`` columns."""
    counts = result.counts
    scaled = (
        f"; {size(result.deployed_bytes)} as deployed, here with {result.scaled}" if result.scaled else ""
    )
    host = f"; {size(result.host_bytes)} on the host" if result.host_bytes else ""
    blocks = (
        f"{result.device_blocks:,} LCM blocks, {size(result.arena_bytes)} in one allocation{host}{scaled}"
    )
    rows = f"{counts.rows_written:,} written   {counts.rows_read:,} read"
    if counts.rows_sent:
        rows += f"   {counts.rows_sent:,} sent to the peer"
    if counts.rows_received:
        rows += f"   {counts.rows_received:,} received from the peer"
    moved = f"{counts.pages_zeroed:,} zeroed"
    if counts.pages_stored or counts.pages_loaded:
        moved += f"   {counts.pages_stored:,} stored on the host   {counts.pages_loaded:,} loaded back"
    if counts.pages_lost:
        moved += f"   {counts.pages_lost:,} lost by storage"
    lines = [
        *_entry("Device", f"{result.device}   role {result.role}", width),
        *_entry("Arena", blocks, width),
        *_entry("Layout", f"{result.memory_layout}, by {result.memory_source}", width),
        *_entry("Allocator", _allocators(result), width),
        *_entry(
            "Requests",
            f"{result.finished:,} of {result.requests:,} finished   {result.refused:,} never fit",
            width,
        ),
        *_entry("Carried out", f"{counts.rounds:,} rounds   {counts.forwards:,} forwards", width),
        *_entry("Rows", rows, width),
        *_entry("Pages", moved, width),
        *(_entry("Acks", result.acks, width) if result.host_bytes else []),
        "",
        *_entry("RESULT", _verdict(result), width),
    ]
    return styled(lines)


def _verdict(result: CheckResult) -> str:
    if result.violation is not None:
        return f"not safe: {result.violation}"
    found = "every read found what its request's own history says"
    if result.ending == "complete":
        return f"safe: {found}"
    return f"safe as far as it was played ({result.ending}): {found}"


def fit_text(result: BlocksFit, width: int = 80) -> Text:
    """The report of ``check-plan --find-max-blocks``."""
    beside = f" beside {size(result.reserve_bytes)}" if result.reserve_bytes else ""
    found = f"{result.found:,} LCM blocks of {size(result.block_bytes)} fit{beside}"
    lines = [
        *_entry("Device", result.device, width),
        *_entry("Allocator", _allocator(result.before), width),
        "",
    ]
    if result.promised is None:
        lines += _entry("RESULT", found, width)
    elif result.fits:
        spare = result.usable - result.promised
        kept = f"the null block, the {result.promised:,} deployed and {spare:,} more"
        lines += _entry("RESULT", f"{found}: {kept}", width)
    else:
        short = result.promised + 1 - result.found
        wanted = f"the {result.promised:,} deployed and the null block"
        lines += _entry("RESULT", f"{found}: {short:,} fewer than {wanted}", width)
        if result.usable:
            lines += _entry("try", f"--pool-blocks {result.usable}", width)
    return styled(lines)


def measured_text(costs: DeviceCosts, output: str, width: int = 80) -> Text:
    """The report of ``measure-device``."""
    lines = [*_entry("Device", costs.title, width), *_entry("Basis", costs.basis, width), ""]
    lines.append(f"{'Bytes':>12}" + "".join(f"{kind.replace('_', ' '):>16}" for kind in KINDS))
    columns = [list(getattr(costs, kind)) for kind in KINDS]
    for row in zip(*columns, strict=True):
        rates = "".join(f"{_rate(sample.bytes_per_s):>16}" for sample in row)
        lines.append(f"{row[0].bytes:>12,}{rates}")
    fitted = ", ".join(_fitted(kind, samples) for kind, samples in zip(KINDS, columns, strict=True))
    lines += ["", *_entry("RESULT", f"{fitted}; written to {output}", width)]
    return styled(lines)


def measured_json(costs: DeviceCosts, output: str) -> str:
    """The result of ``measure-device`` as JSON with a last newline."""
    values: dict[str, Any] = {"device": costs.device, "title": costs.title, "basis": costs.basis}
    for kind in KINDS:
        samples = getattr(costs, kind)
        values[kind] = asdict(Cost.of(samples)) | {
            "samples": [asdict(sample) | {"bytes_per_s": sample.bytes_per_s} for sample in samples]
        }
    return _json(values | {"output": output})


def _fitted(kind: str, samples: Sequence[Sample]) -> str:
    cost = Cost.of(samples)
    return f"{kind.replace('_', ' ')} {cost.latency_s * 1e6:,.1f} us + bytes / {_rate(cost.bytes_per_s)}"


def check_json(result: CheckResult) -> str:
    """The result of ``check-plan`` as JSON with a last newline."""
    values: dict[str, Any] = {
        name: getattr(result, name)
        for name in result.__slots__
        if name not in ("violation", "counts", "before", "after")
    }
    values = {"safe": result.safe} | values
    values["violation"] = None
    if result.violation is not None:
        one = result.violation
        values["violation"] = {
            "round": one.round,
            "request_id": one.request_id,
            "group": one.group,
            "page": one.page,
            "tier": one.place.tier,
            "what": one.what,
            "last_writer": one.writer,
        }
    values["counts"] = asdict(result.counts)
    values["allocator"] = {"before": asdict(result.before), "after": asdict(result.after)}
    return _json(values)


def fit_json(result: BlocksFit) -> str:
    """The result of ``check-plan --find-max-blocks`` as JSON with a last newline."""
    return _json({"fits": result.fits, "usable": result.usable} | asdict(result))


def _json(values: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


def _allocators(result: CheckResult) -> str:
    """Before, after, and what the plan promised that lies between them."""
    before, after = result.before, result.after
    if before.allocated is None or after.allocated is None:
        promised = size(result.arena_bytes + result.host_bytes)
        grown = (after.process or 0) - (before.process or 0)
        return f"before: {_allocator(before)}; after: {size(grown)} more resident, {promised} promised"
    grown = after.allocated - before.allocated
    return (
        f"before: {_allocator(before)}; after: {_allocator(after)}; {size(grown)} more allocated, "
        f"{size(result.arena_bytes)} promised"
    )


def _allocator(report: AllocatorReport) -> str:
    if report.allocated is None:
        return f"{_process(report)}, {size(report.device_free)} free on the machine (torch keeps no account of a CPU)"
    return (
        f"{size(report.allocated)} allocated of {size(report.reserved)} reserved, largest free piece "
        f"{size(report.largest_free)}, fragmentation {100 * (report.fragmentation or 0):.0f} %, "
        f"{size(report.device_free)} free on the device"
    )


def _process(report: AllocatorReport) -> str:
    return f"{size(report.process)} resident"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.2f} GB/s"


def _entry(label: str, text: str, width: int) -> list[str]:
    parts = textwrap.wrap(text, max(width - LABEL, 20), break_long_words=False, break_on_hyphens=False)
    return [f"{label if not at else '':<{LABEL}}{part}" for at, part in enumerate(parts)]
