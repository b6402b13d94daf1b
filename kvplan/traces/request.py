"""One row of a trace, checked: what a format's fields say, before it joins the rows before it."""

from dataclasses import dataclass
from difflib import get_close_matches

from kvplan.traces.errors import counted, shown
from kvplan.traces.fields import Fields
from kvplan.traces.format import Format
from kvplan.traces.own import prefix_of
from kvplan.traces.times import Exact, offset_s

HASH_TOKENS_SEEN = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(slots=True)
class Request:
    """A request as its row gives it. At most one of `hashes`, `prefix` and `prompt_ids` is there."""

    request_id: str | None
    parent_id: str | None
    session_id: str | None
    arrival: Exact | None
    wall_clock: bool
    delay_s: float | None
    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int | None
    hashes: list[int] | list[str] | None
    prefix: list[tuple[str, int]] | None
    prompt_ids: list[int] | None
    output_ids: list[int] | None


def request_of(fields: Fields, form: Format, unit: str, hash_tokens: int) -> Request:
    """Return the request that a row describes; `unit` is that of its arrival. Raises TraceError."""
    if form.closed:
        _refuse_unknown(fields, form)
    output_tokens, output_ids = _tokens(fields, form.output_tokens, form.output_ids)
    prompt_tokens, prompt_ids = _tokens(fields, form.prompt_tokens, form.prompt_ids)
    if prompt_tokens == 0 and output_tokens > 0:
        raise fields.fault("the prompt has 0 tokens; 1 or more is expected")
    arrival = fields.time(form.arrival)
    budget = fields.count(form.max_new_tokens)
    if budget is not None and budget[1] < output_tokens:
        raise fields.fault(
            f"{budget[0]} is {budget[1]}, less than the {counted(output_tokens, 'token')} generated; "
            "a budget that covers the output is expected"
        )
    session_id, delay_s = fields.label(form.session_id), _delay_s(fields, form, unit)
    if delay_s is not None and session_id is None:
        raise fields.fault("a delay without a session_id has no turn to follow; a session_id is expected")
    return Request(
        request_id=fields.label(form.request_id),
        parent_id=fields.label(form.parent_id),
        session_id=session_id,
        arrival=None if arrival is None else arrival[1],
        wall_clock=arrival is not None and arrival[2],
        delay_s=delay_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_new_tokens=None if budget is None else budget[1],
        hashes=_hashes(fields, form, prompt_tokens, hash_tokens),
        prefix=_prefix(fields, form, prompt_tokens, prompt_ids),
        prompt_ids=prompt_ids,
        output_ids=output_ids,
    )


def _refuse_unknown(fields: Fields, form: Format) -> None:
    known = form.fields
    for name in fields.values:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"{near[0]} is the nearest" if near else f"known are {', '.join(sorted(known))}"
            raise fields.fault(f"field {shown(name)} is not known to the {form.name} format; {hint}")


def _tokens(fields: Fields, lengths: tuple[str, ...], ids: tuple[str, ...]) -> tuple[int, list[int] | None]:
    """Return a length and, if the row has them, the token ids it must agree with."""
    length = fields.count(lengths)
    listed = fields.ids(ids) if ids else None
    if listed is None:
        if length is None:
            raise fields.fault(f"{' or '.join(lengths + ids)} is missing")
        return length[1], None
    name, values = listed
    if length is not None and length[1] != len(values):
        raise fields.fault(
            f"{length[0]} is {length[1]}, but {name} has {counted(len(values), 'token id')}; both must agree"
        )
    return len(values), values


def _delay_s(fields: Fields, form: Format, unit: str) -> float | None:
    found: float | None = None
    for name, own_unit in form.delays.items():
        value = fields.duration(name)
        if value is not None:
            if found is not None:
                raise fields.fault(f"{' and '.join(form.delays)} are both there; one delay is expected")
            found = offset_s(value, 0, own_unit or unit)
    return found


def _hashes(
    fields: Fields, form: Format, prompt_tokens: int, hash_tokens: int
) -> list[int] | list[str] | None:
    found = fields.hashes(form.hash_ids) if form.hash_ids else None
    if found is None:
        return None
    name, hashes = found
    expected = -(-prompt_tokens // hash_tokens)
    if len(hashes) != expected:
        fits = [size for size in HASH_TOKENS_SEEN if -(-prompt_tokens // size) == len(hashes)]
        hint = f" ({fits[0]} tokens a hash would fit)" if len(fits) == 1 and len(hashes) > 1 else ""
        raise fields.fault(
            f"{name} has {counted(len(hashes), 'hash')} for a prompt of {counted(prompt_tokens, 'token')}; "
            f"{counted(expected, 'hash')} expected, one for each {hash_tokens} tokens{hint}"
        )
    return hashes


def _prefix(
    fields: Fields, form: Format, prompt_tokens: int, prompt_ids: list[int] | None
) -> list[tuple[str, int]] | None:
    parts = prefix_of(fields, form.prefix) if form.prefix else None
    if parts is None:
        return None
    if prompt_ids is not None:
        raise fields.fault(
            f"{form.prefix} and the prompt's token ids are both there; one of them is expected"
        )
    total = sum(tokens for _, tokens in parts)
    if total > prompt_tokens:
        raise fields.fault(
            f"{form.prefix} has {counted(total, 'token')}, more than the prompt's {prompt_tokens:,}; "
            "a prefix within the prompt is expected"
        )
    return parts
