"""`--compare FLAG=V1,V2,...`: one wish under several values of a flag, or of several flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.commands.model_options import FLAG_TYPES, ModelFlags, batch_flag
from kvplan.commands.remedies import replanned
from kvplan.deployment.fields import FLAG_FIELDS, Kind, flag

if TYPE_CHECKING:
    from kvplan.reports.side_by_side import Compared, Row

MOST_ROWS = 100
_TYPES: dict[Kind, type] = {Kind.COUNT: int, Kind.GIB: float, Kind.CHOICE: str, Kind.TEXT: str}
_OWN = {"max_context_len": "max_context_len", "max_model_len": "max_context_len"}
_OWN |= {"max_total_tokens": "max_total_tokens"}


def side_by_side(
    compare: Sequence[str],
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
    max_context_len: int,
    max_total_tokens: int | None,
) -> Compared:
    """Return the answer of ``size_pool`` for each value of the flag that an entry of ``compare`` names.

    Several entries are about several flags, and every value of one meets every value of the others. Raises
    ``ValueError`` for anything but FLAG=V1,V2 with a known flag, one flag or value twice, more than ``MOST_ROWS``
    combinations, and a value that is wrong.
    """
    from kvplan.recipes.errors import NoRoomError
    from kvplan.reports.side_by_side import Compared, Row

    parsed = [_parsed(one) for one in compare]
    places = [_place(name) for name, _ in parsed]
    for at, place in enumerate(places):
        if place in places[:at]:
            raise ValueError(
                f"--compare is about {flag(parsed[at][0])} twice; give all its values in one list"
            )
    count = prod(len(values) for _, values in parsed)
    if count > MOST_ROWS:
        raise ValueError(f"--compare asks for {count} combinations; at most {MOST_ROWS} can be shown")
    rows = []
    for combination in product(*(values for _, values in parsed)):
        flags, given = dict(overrides), dict(model.given)
        own = {"max_context_len": max_context_len, "max_total_tokens": max_total_tokens}
        for (name, _), (_, value) in zip(parsed, combination, strict=True):
            if name in FLAG_TYPES:
                given[name] = value
            elif name in _OWN:
                own[_OWN[name]] = value
            else:
                place = _place(name)
                flags = {n: v for n, v in flags.items() if _place(n) != place} | {name: value}
        values = {flag(name): written for (name, _), (written, _) in zip(parsed, combination, strict=True)}
        try:
            rows.append(_row(values, replace(model, given=given, emit=None), deployment, flags, own))
        except NoRoomError as error:
            rows.append(Row(values, None, None, 1, str(error)))
        except ValueError as error:
            named = " ".join(f"{name} {written}" for name, written in values.items())
            raise ValueError(f"--compare, {named}: {error}") from None
    if all(row.result is None for row in rows):
        named = " ".join(f"{name} {written}" for name, written in rows[0].values.items())
        raise ValueError(f"--compare, {named}: {rows[0].problem}")
    return Compared(tuple(flag(name) for name, _ in parsed), tuple(rows))


def _row(
    values: dict[str, str],
    model: ModelFlags,
    deployment: Path | None,
    flags: dict[str, object],
    own: dict[str, Any],
) -> Row:
    from kvplan.reports.memory import of_all_replicas
    from kvplan.reports.side_by_side import Row
    from kvplan.sizing import Verdict, size_pool

    context, total = own["max_context_len"], own["max_total_tokens"]
    loaded, plan = model.load(deployment, flags, context, True)
    replicas = 1 if plan is None else plan.ranks.dp
    result = size_pool(loaded, context, None if total is None else -(-total // replicas))
    if plan is not None and replicas > 1:
        result = of_all_replicas(result, plan, batch_flag(flags))
    if plan is not None and result.verdict in (Verdict.NOT_AT_ONCE, Verdict.NEVER_FITS):
        result = replanned(model, flags, plan, result)
    return Row(values, result, None if plan is None else plan.bytes_per_token, replicas)


def _place(name: str) -> str:
    """What a flag is about, under whichever of its names."""
    return next((known.place for known in FLAG_FIELDS if name in known.names), _OWN.get(name, name))


def _parsed(text: str) -> tuple[str, list[tuple[str, Any]]]:
    written, equals, listed = text.partition("=")
    name = written.strip().removeprefix("--").replace("-", "_")
    values = [value.strip() for value in listed.split(",")]
    if not equals or not all(values):
        raise ValueError(f"--compare is {text!r}; FLAG=V1,V2 is needed, as in --compare kv-dtype=bf16,fp8")
    twice = [value for at, value in enumerate(values) if value in values[:at]]
    if twice:
        raise ValueError(f"--compare has {flag(name)} {twice[0]} twice; once is enough")
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
