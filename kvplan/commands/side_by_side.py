"""`--compare FLAG=V1,V2,...`: one wish under several values of a flag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.commands.model_options import FLAG_TYPES, ModelFlags
from kvplan.deployment.fields import FLAG_FIELDS, Kind, flag

if TYPE_CHECKING:
    from kvplan.reports.side_by_side import Compared

_TYPES: dict[Kind, type] = {Kind.COUNT: int, Kind.GIB: float, Kind.CHOICE: str, Kind.TEXT: str}
_OWN = ("max_context_len", "max_model_len", "max_total_tokens")


def side_by_side(
    compare: str,
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
    max_context_len: int,
    max_total_tokens: int | None,
) -> Compared:
    """Return the answer of ``size_pool`` for each value of the flag that ``compare`` names.

    Raises ``ValueError`` for anything but FLAG=V1,V2 with a known flag, and for a value that is wrong.
    """
    from kvplan.reports.side_by_side import Compared, Row
    from kvplan.sizing import size_pool

    name, values = _parsed(compare)
    rows = []
    for written, value in values:
        flags, given = dict(overrides), dict(model.given)
        context, total = max_context_len, max_total_tokens
        if name in FLAG_TYPES:
            given[name] = value
        elif name in _OWN:
            context, total = (context, value) if name == "max_total_tokens" else (value, total)
        else:
            place = next(known.place for known in FLAG_FIELDS if name in known.names)
            flags = {n: v for n, v in flags.items() if _place(n) != place} | {name: value}
        try:
            loaded, plan = replace(model, given=given, emit=None).load(deployment, flags, context, True)
            replicas = 1 if plan is None else plan.ranks.dp
            result = size_pool(loaded, context, None if total is None else -(-total // replicas))
        except ValueError as error:
            raise ValueError(f"--compare, {flag(name)} {written}: {error}") from None
        rows.append(Row(written, result, None if plan is None else plan.bytes_per_token))
    return Compared(flag(name), tuple(rows))


def _place(name: str) -> str:
    return next((known.place for known in FLAG_FIELDS if name in known.names), name)


def _parsed(text: str) -> tuple[str, list[tuple[str, Any]]]:
    written, equals, listed = text.partition("=")
    name = written.strip().removeprefix("--").replace("-", "_")
    values = [value.strip() for value in listed.split(",")]
    if not equals or not all(values):
        raise ValueError(f"--compare is {text!r}; FLAG=V1,V2 is needed, as in --compare kv-dtype=bf16,fp8")
    kind = FLAG_TYPES.get(name) or dict(_fields()).get(name)
    if kind is None:
        raise ValueError(f"--compare is about {flag(name)}, which is no flag that has values to compare")
    return name, [(value, _value(value, kind, name)) for value in values]


def _fields() -> Iterator[tuple[str, type]]:
    for name in _OWN:
        yield name, int
    for known in FLAG_FIELDS:
        if known.kind in _TYPES:
            yield from ((name, _TYPES[known.kind]) for name in known.names)


def _value(text: str, kind: type, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--compare, {flag(name)} {text}: a number is needed") from None
