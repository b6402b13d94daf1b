"""A model's plan as memory: its fields in planes, as large as promised, nothing on top of anything else."""

import numpy as np
import pytest

from kvplan.backends.arena import Arena
from kvplan.backends.layout import Field, GroupSpec, Layout
from kvplan.backends.memory import Memory
from kvplan.backends.signatures import POISON
from kvplan.recipes import MemoryPlan, plan_memory
from tests.backends.small import request, scenario
from tests.support.groups import config, full

torch = pytest.importorskip("torch", reason="an arena needs the extra kvplan-toolkit[torch]")

CPU = torch.device("cpu")
MODELS = [
    ("llama-3.1-8b", {}),
    ("gpt-oss-20b", {"kv_dtype": "mxfp8"}),
    ("gemma-3-27b", {"kv_dtype": "int8", "max_context_len": 4096}),
    ("deepseek-v3.2", {"kv_dtype": "fp8"}),
    ("qwen3-next-80b", {"tp": 4}),
    ("kimi-linear-48b-a3b", {"kv_dtype": "fp8"}),
    ("jamba-v0.1", {"pp": 2}),
    ("bamba-9b", {"pp": 4, "kv_dtype": "mxfp8"}),
]


def planned(model: str, settings: dict[str, object]) -> MemoryPlan:
    """The plan of a model on one H200, whose weights take a GiB."""
    options = {"gpu": "h200", "weights_gib": 1, "reserve_gib": 1, **settings}
    return plan_memory(model, **options)  # type: ignore[arg-type]


def covered(arena: Arena, group: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which bytes of an arena are a row of the group's fields, found by writing through the views."""
    arena.bytes.fill_(0)
    for field in range(len(arena.layout.groups[group].fields)):
        view = arena.field(group, field)
        before = int(arena.bytes.count_nonzero())
        view.view(torch.uint8)[...] = 1
        rows = arena.layout.pages(group) * arena.layout.groups[group].layers * arena.layout.groups[group].rows
        size = rows * arena.layout.groups[group].fields[field].row_bytes
        assert int(arena.bytes.count_nonzero()) == before + size  # no byte of it was another field's
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = arena.bytes.numpy() == 1
    return found


@pytest.mark.parametrize(("model", "settings"), MODELS)
def test_an_arena_is_as_large_as_the_plan_promised(model: str, settings: dict[str, object]) -> None:
    plan = planned(model, settings)
    memory = Memory.planned(plan)
    assert plan.usable_blocks is not None
    assert plan.stage.cache_bytes is not None
    layout = memory.layout(plan.usable_blocks)
    assert layout.bytes == plan.usable_blocks * plan.stage.block_bytes
    assert (
        0 <= plan.stage.cache_bytes - layout.bytes < 2 * plan.stage.block_bytes
    )  # the null block, and a rest
    for spec, one in zip(memory.groups, plan.stage.groups, strict=True):
        if one.group.layers:  # this stage may have none of a group's
            assert spec.page_bytes == one.page_bytes
        assert spec.packing == one.pages_per_block


@pytest.mark.parametrize(("model", "settings"), MODELS)
def test_fields_have_the_plan_s_types_and_shapes(model: str, settings: dict[str, object]) -> None:
    plan = planned(model, settings)
    arena = Arena(Memory.planned(plan).layout(1), CPU)
    for at, one in enumerate(plan.stage.groups):
        for number, field in enumerate(one.group.fields if one.group.layers else ()):
            view = arena.field(at, number)
            rows = 1 if one.group.kind == "state" else one.group.span
            assert view.shape[4:] == (rows, *field.shape)
            assert view.shape[3] == len(one.group.layers)
            assert view.shape[:3].numel() == one.pages_per_block
            assert view.dtype.itemsize * field.shape[-1] * int(np.prod(field.shape[:-1])) == field.bytes


@pytest.mark.parametrize(("model", "settings"), MODELS)
def test_views_of_a_group_do_not_overlap_and_stay_in_their_block(
    model: str, settings: dict[str, object]
) -> None:
    """Each byte is one field's of one page; the pages of a block lie in the planes' part of that block."""
    memory = Memory.planned(planned(model, settings))
    shrunk = memory.scaled(max(memory.deepest // 2, 1))
    arena = Arena(shrunk.layout(3), CPU)
    layout = arena.layout
    for group, spec in enumerate(layout.groups):
        rows = layout.pages(group) * spec.rows * spec.layers
        assert int(covered(arena, group).sum()) == rows * sum(field.row_bytes for field in spec.fields)
        arena.bytes.fill_(0)
        for page in range(1, spec.packing + 1):
            arena.page(group, page + spec.packing).fill_(1)  # the second block's
        by_block = arena.bytes.numpy().reshape(layout.planes, 3, layout.plane_bytes)
        assert by_block[:, 1].any()
        assert not by_block[:, [0, 2]].any()


@pytest.mark.parametrize(("model", "settings"), MODELS)
def test_what_is_written_is_read_in_every_field_and_padding_is_left_alone(
    model: str, settings: dict[str, object]
) -> None:
    memory = Memory.planned(planned(model, settings))
    shrunk = memory.scaled(max(memory.deepest // 2, 1))
    arena = Arena(shrunk.layout(3), CPU)
    rng = np.random.default_rng(1)
    for group, spec in enumerate(arena.layout.groups):
        rows_of = covered(arena, group)
        arena.words.fill_(POISON)
        fresh = arena.bytes.numpy().copy()
        pages = np.repeat(np.arange(1, 3 * spec.packing + 1), spec.rows)
        rows = np.tile(np.arange(spec.rows), 3 * spec.packing)
        marks = rng.integers(1, 2**62, len(pages)) | 1
        arena.write(group, pages, rows, marks)
        assert arena.differing(group, pages, rows, marks) is None
        assert arena.read(group, pages, rows).tolist() == marks.tolist()
        changed = arena.bytes.numpy() != fresh
        assert changed.any()
        assert not changed[~rows_of].any()
        last = len(spec.fields) - 1
        view = arena.field(group, last).view(torch.uint8)
        view[-1, -1, -1, -1, -1].view(-1)[0] ^= 0xFF  # in the last layer's last field, of the last row
        wrong = arena.differing(group, pages, rows, marks)
        assert wrong is not None
        assert wrong[0] == len(pages) - 1


def test_groups_share_the_planes_slot_by_slot() -> None:
    memory = Memory.planned(planned("qwen3-next-80b", {"tp": 4}))
    layout = memory.layout(2)
    assert memory.planar
    assert (layout.planes, len(layout.groups)) == (12, 4)
    plane = layout.blocks * layout.plane_bytes
    assert {step.layer for step in layout.strides} == {plane}
    assert {step.block for step in layout.strides} == {layout.plane_bytes}


def test_rows_of_odd_bytes_hold_what_there_is_room_for() -> None:
    spec = GroupSpec(
        "odd", 3, 2, (Field("scale", 1), Field("latent", 13), Field("key", 5)), layers=2, alignment=1
    )
    arena = Arena(Layout([spec], 2, planar=True), CPU)
    pages, rows, marks = np.array([1, 2, 4]), np.array([0, 2, 1]), np.array([0x0102030405060708, 9, 11])
    arena.write(0, pages, rows, marks)
    assert arena.differing(0, pages, rows, marks) is None
    assert arena.read(0, pages, rows).tolist() == marks.tolist()
    assert arena.field(0, 0)[0, 0, 0, :, 0, 0].tolist() == [8, 8]
    assert arena.field(0, 2)[0, 0, 0, 1, 0].tolist() == [8, 7, 6, 5, 4]
    arena.field(0, 2)[0, 0, 1, 1, 2, 4] = 1
    assert arena.differing(0, pages, rows, marks) == (1, 1 << 32 | 9)


def test_pages_move_between_arenas_of_different_size() -> None:
    memory = Memory.planned(planned("deepseek-v3.2", {"kv_dtype": "fp8"}))
    small = memory.scaled(memory.deepest)
    device, host = Arena(small.layout(4), CPU), Arena(small.layout(2), CPU)
    for group, spec in enumerate(small.groups):
        pages, rows = np.full(spec.rows, 4 * spec.packing), np.arange(spec.rows)
        marks = np.arange(1, spec.rows + 1) * 2 + 1
        device.write(group, pages, rows, marks)
        for there, here in zip(host.parts(group, 2), device.parts(group, 4 * spec.packing), strict=True):
            there.copy_(here)
        assert host.differing(group, np.full(spec.rows, 2), rows, marks) is None


def test_a_stage_whose_planes_make_other_blocks_lies_block_by_block() -> None:
    plan = planned("bamba-9b", {"pp": 4, "kv_dtype": "mxfp8"})
    memory = Memory.planned(plan)
    assert not memory.planar
    assert memory.lies == "each block in one piece"
    assert memory.layout(1).block_bytes == plan.stage.block_bytes


def test_a_scenario_runs_in_real_planes() -> None:
    """The groups of a small scenario with the fields of two models' layers: padding stays as it was."""
    from kvplan.backends.backend import Backend
    from kvplan.backends.carried import CarriedScheduler
    from tests.backends.carrying import CarriedRun

    fields = (Field("latent", 576), Field("scale", 4), Field("index", 13))
    groups = [
        GroupSpec("full", 4, 1, fields, layers=3, alignment=256),
        GroupSpec("state", 1, 1, (Field("s", 2699),), 2),
    ]

    class Planes(CarriedRun):
        def carried(self, made: object, backend: Backend) -> CarriedScheduler:  # type: ignore[override]
            self.backend = Backend(self.config, backend.roll.script, memory=Memory(groups, planar=True))
            return CarriedScheduler(self.config, self.backend)

    one = scenario(
        request(0, (1, 0, 30), output=20),
        request(1, (1, 0, 20), (2, 0, 9), output=20, submit=4),
        groups=("full", "state"),
        num_host_pages=65,
    )
    run = Planes(one)
    for _ in run.rounds():
        pass
    arena = run.backend.arena
    assert run.backend.counts.pages_stored > 0
    assert arena.layout.planes == 3
    used = arena.bytes.numpy().copy()
    rows = covered(arena, 0) | covered(arena, 1)
    parts = np.zeros(len(used), np.bool_)
    for group in (0, 1):  # zeroing takes whole parts, their ends included
        arena.bytes.fill_(0)
        for page in range(1, arena.layout.pages(group) + 1):
            arena.page(group, page).view(torch.uint8).fill_(1)
        parts |= arena.bytes.numpy() == 1
    poison = np.resize(np.frombuffer(np.int64(POISON).tobytes(), np.uint8), len(used))
    assert (~parts).any()
    assert (used[~parts] == poison[~parts]).all()
    ends = parts & ~rows
    assert ends.any()
    assert ((used[ends] == poison[ends]) | (used[ends] == 0)).all()


def test_memory_of_a_deployment_fits_what_a_cpu_may_take() -> None:
    groups = config(full(4), pages=1 << 16)
    memory = Memory.of(groups, {"full": 4 * 4096})
    assert memory.fitting(groups, 1 << 28).layout((1 << 16) - 1).bytes <= 1 << 28
    assert memory.fitting(groups, 1 << 28).shrunk == "rows up to 4 times smaller"
