"""The memory of common accelerators, from gpus.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from kvplan.recipes.errors import RecipeError

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator: its memory in bytes, who says so ("driver" or "vendor") and when that was noted."""

    name: str
    memory_bytes: int
    source: str
    date: str


@cache
def known_gpus() -> dict[str, Gpu]:
    """Return the accelerators that are known, by each of their names."""
    table = tomllib.loads((Path(__file__).parent / "gpus.toml").read_text("utf-8"))
    found = {}
    for entry in table["gpu"]:
        gpu = Gpu(entry["name"], entry["mib"] * MIB, entry["source"], entry["date"])
        for name in (gpu.name, *entry.get("aliases", ())):
            found[name] = gpu
    return found


def find_gpu(name: str) -> Gpu:
    """Return the accelerator of that name, in any case. Raises ``RecipeError`` for one that is not known."""
    known = known_gpus()
    written = name.strip().lower().replace("_", "-").replace(" ", "-")
    if written in known:
        return known[written]
    near = get_close_matches(written, known, n=1, cutoff=0.4)
    hint = f"{near[0]} is the nearest known name, " if near else ""
    raise RecipeError(
        f"gpu {name!r} is not known; {hint}known_gpus lists all, and gpu_memory_gib takes any size"
    )
