"""What a trace format is: how its fields are called and what they count."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """Field names by meaning; of several names for one meaning a row has any one.

    `time_unit` is that of the arrivals unless another is given; a wall clock has none. `delays` maps a
    field to the unit of its delays (None: the arrivals'). `marks` are further fields that tell this format
    from one it resembles. Columns of CSV are found whatever their case.
    """

    name: str
    kind: Literal["jsonl", "csv"]
    time_unit: str
    output_tokens: Names
    prompt_tokens: Names
    prompt_ids: Names = ()
    arrival: Names = ()
    marks: Names = ()
    hash_ids: Names = ()
    hash_tokens: int | None = None
    output_ids: Names = ()
    prefix: str | None = None
    request_id: Names = ("request_id", "id")
    parent_id: Names = ()
    session_id: Names = ("session_id",)
    delays: Mapping[str, str | None] = field(default_factory=dict)
    max_new_tokens: Names = ("max_new_tokens",)
    closed: bool = False

    def matches(self, names: Iterable[str]) -> bool:
        """Whether a row with these fields, or a file with these columns, is of this format."""
        found = set(self.spelt(names))
        return (
            not found.isdisjoint(self.prompt_tokens + self.prompt_ids)
            and not found.isdisjoint(self.output_tokens)
            and found.issuperset(self.marks)
        )

    def spelt(self, names: Iterable[str]) -> list[str]:
        """Return the names as the format spells those it knows, the others as they are."""
        if self.kind == "jsonl":
            return list(names)
        known = {name.casefold(): name for name in self.fields}
        return [known.get(name.casefold(), name) for name in names]

    @property
    def needs(self) -> str:
        """The fields that the format is recognised by, in words."""
        prompt = " or ".join(self.prompt_tokens + self.prompt_ids)
        return " + ".join([*self.marks, prompt, " or ".join(self.output_tokens)])

    @property
    def fields(self) -> frozenset[str]:
        """Every field name that the format knows."""
        groups = (self.request_id, self.parent_id, self.session_id, self.max_new_tokens, tuple(self.delays))
        tokens = (self.prompt_tokens, self.prompt_ids, self.hash_ids, self.output_tokens, self.output_ids)
        names = {name for group in (self.arrival, *groups, *tokens) for name in group}
        return frozenset(names | ({self.prefix} if self.prefix else set()))
