"""A deployment: scheduler settings, cache groups and memory, from a file and what overrides it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.deployment.document import read_document
from kvplan.deployment.errors import DeploymentError
from kvplan.deployment.fields import FLAG_FIELDS, GROUPS, HOST, POOL, REQUIRED, flag
from kvplan.deployment.given import Given, Origin, collect
from kvplan.deployment.groups import GroupValues, collect_groups
from kvplan.deployment.sizes import block_bytes, check_page_ids, memory_bytes, padding
from kvplan.deployment.written import toml

if TYPE_CHECKING:
    from kvplan.scheduler import SchedulerConfig


@dataclass(frozen=True, eq=False)
class Deployment:
    """What an engine is deployed with; made by ``load_deployment``, changed by ``replace``.

    ``config`` is validated; it has ``num_device_pages`` if the deployment gives a pool. ``group_bytes`` are
    the bytes a page of each group, ``block_bytes`` those of an LCM block, ``padding`` the bytes of a block
    that a group's pages leave unused: None where not known. ``usable_blocks`` is the device pool in LCM
    blocks, the null one not counted (None: none is given), ``host_blocks`` the host pool likewise (0: none),
    ``memory_bytes`` the budget if the pool is given as memory. ``sources`` says of each field of ``config``
    where it comes from: the file, "flag --max-num-seqs", "set by the caller" or "default".
    """

    config: SchedulerConfig
    group_bytes: dict[str, int | None]
    block_bytes: int | None
    padding: dict[str, int | None]
    usable_blocks: int | None
    host_blocks: int
    memory_bytes: int | None
    sources: dict[str, str]
    _values: dict[str, Given] = field(repr=False)
    _groups: tuple[GroupValues, ...] = field(repr=False)

    def replace(self, **fields: object) -> Deployment:
        """Return the deployment with ``fields`` set (any name that a file may use); None takes a field back.

        A pool size replaces the pool that was given, in whatever unit. Raises ``DeploymentError``.
        """
        values, groups = _collect_layer(fields, Origin())
        kept = {
            place: given
            for place, given in self._values.items()
            if not any(name in fields and fields[name] is None for name in _names_of(place))
        }
        return _made_of(kept | values, groups or self._groups, "")

    def with_pool_blocks(self, blocks: int) -> Deployment:
        """Return the deployment with a pool of ``blocks`` usable LCM blocks. Raises ``DeploymentError``."""
        return self.replace(pool_blocks=blocks)

    def to_toml(self) -> str:
        """Return the deployment as a file that ``load_deployment`` reads to the same deployment."""
        return toml(self._values, self._groups)


def load_deployment(path: Path | None, overrides: Mapping[str, object] = {}) -> Deployment:
    """Return the deployment of the file at ``path``, with ``overrides`` (flags, by name) put over it.

    Raises ``DeploymentError``, one sentence, for a file that cannot be read, a field that is not known, is
    given twice or has a wrong value, one that is missing, and what the engine refuses (engine.md §2).
    """
    values: dict[str, Given] = {}
    groups: tuple[GroupValues, ...] | None = None
    where = ""
    if path is not None:
        where = str(path)
        values, groups = _collect_layer(read_document(path), Origin(file=where))
    given, other_groups = _collect_layer(overrides, Origin(flags=True))
    if where and given:
        where += " with " + " ".join(flag(one.written.replace("-", "_")) for one in given.values())
    return _made_of(values | given, other_groups or groups, where)


def _collect_layer(
    document: Mapping[str, object], origin: Origin
) -> tuple[dict[str, Given], tuple[GroupValues, ...] | None]:
    rest: dict[str, Any] = dict(document)
    spelt = (GROUPS, GROUPS.replace("_", "-"))
    tables = [rest.pop(key) for key in spelt if key in rest]
    if len(tables) > 1:
        raise DeploymentError(f"{origin.named(' and '.join(spelt))} are one field; give one of them")
    values = collect(rest, FLAG_FIELDS, origin, also=(GROUPS,))
    return values, collect_groups(tables[0], origin) if tables else None


def _names_of(place: str) -> list[str]:
    return [name for known in FLAG_FIELDS if known.place == place for name in known.names]


def _made_of(values: dict[str, Given], groups: tuple[GroupValues, ...] | None, where: str) -> Deployment:
    from kvplan.deployment.engine import set_pools, sizing_config, usable_blocks  # numpy, which --help lacks

    prefix = f"{where}: " if where else ""
    if groups is None:
        model = "" if where else ", or name the model whose groups they are (--model)"
        raise DeploymentError(
            f"{prefix}{GROUPS} is missing; declare each cache group as a [[{GROUPS}]] table of a deployment "
            f"file (--deployment FILE){model}"
        )
    for needed in REQUIRED:
        if needed not in values:
            raise DeploymentError(f"{prefix}{needed} is missing; give it in the file or as {flag(needed)}")
    pool, host = values.get(POOL), values.get(HOST)
    try:
        config = sizing_config(values, groups)
        packing = {group.group_id: group.cache_blocks_per_lcm_block for group in config.cache_groups}
        sizes = {str(g["group_id"].value): _bytes(g) for g in groups}
        block = block_bytes(sizes, packing)
        unknown = [name for name, size in sizes.items() if size is None]
        usable, held = (
            None if size is None else usable_blocks(size, config, block, unknown) for size in (pool, host)
        )
        for size, count in ((pool, usable), (host, held)):
            if size is not None and count is not None:
                check_page_ids(size, count, max(packing.values()))
        set_pools(config, usable, held or 0)
    except DeploymentError:
        raise
    except ValueError as error:
        raise DeploymentError(prefix + str(error)) from None
    return Deployment(
        config=config,
        group_bytes=sizes,
        block_bytes=block,
        padding=padding(sizes, packing),
        usable_blocks=usable,
        host_blocks=held or 0,
        memory_bytes=memory_bytes(float(pool.value)) if pool and pool.field.name == "pool_gib" else None,
        sources=_sources(config, values, groups),
        _values=values,
        _groups=groups,
    )


def _bytes(group: GroupValues) -> int | None:
    given = group.get("bytes_per_page")
    return None if given is None else int(given.value)


def _sources(
    config: SchedulerConfig, values: Mapping[str, Given], groups: tuple[GroupValues, ...]
) -> dict[str, str]:
    places = {"num_device_pages": POOL, "num_host_pages": HOST}
    sources = {
        name: values[place].origin.source(values[place].written) if place in values else "default"
        for name, place in ((name, places.get(name, name)) for name in vars(config))
    }
    first = groups[0]["group_id"]
    return sources | {GROUPS: first.origin.inside("").source(GROUPS)}
