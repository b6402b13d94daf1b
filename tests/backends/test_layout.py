"""Where pages and rows lie: planes inside pages, pages inside LCM blocks."""

import numpy as np

from kvplan.backends.layout import Field, GroupSpec, Layout, group_specs
from kvplan.backends.memory import Memory
from tests.support.groups import config, full, state

KEYS_AND_VALUES = GroupSpec("full", rows=4, packing=3, fields=(Field("k", 16), Field("v", 8)))
STATE = GroupSpec("state", rows=1, packing=1, fields=(Field("state", 320),))


def test_a_block_is_as_large_as_the_largest_group_needs() -> None:
    assert KEYS_AND_VALUES.page_bytes == 4 * (16 + 8)
    layout = Layout([KEYS_AND_VALUES, STATE], blocks=5)
    assert layout.block_bytes == 320
    assert layout.bytes == 5 * 320
    assert [layout.pages(group) for group in (0, 1)] == [15, 5]


def test_page_ids_count_through_the_blocks_from_one() -> None:
    layout = Layout([KEYS_AND_VALUES, STATE], blocks=5)
    assert layout.page_at(0, np.array([1, 2, 3, 4])).tolist() == [0, 96, 192, 320]
    assert layout.page_at(1, np.array([1, 2])).tolist() == [0, 320]


def test_the_rows_of_each_field_lie_one_behind_the_other() -> None:
    layout = Layout([KEYS_AND_VALUES, STATE], blocks=5)
    keys, values = (layout.rows_at(0, field, np.array([4, 4]), np.array([0, 3])) for field in (0, 1))
    assert keys.tolist() == [320, 320 + 3 * 16]
    assert values.tolist() == [320 + 64, 320 + 64 + 3 * 8]


def test_no_two_rows_of_a_group_share_a_word() -> None:
    layout = Layout([KEYS_AND_VALUES], blocks=4, block_bytes=400)
    pages = np.repeat(np.arange(1, 13), 4)
    rows = np.tile(np.arange(4), 12)
    places = np.concatenate([layout.rows_at(0, field, pages, rows) for field in (0, 1)])
    assert len(set((places // 8).tolist())) == len(places) == 96
    assert places.max() < layout.bytes == 1600


def test_scaling_down_stops_at_one_signature_a_row() -> None:
    assert KEYS_AND_VALUES.scaled(2).page_bytes == 4 * (8 + 8)
    assert KEYS_AND_VALUES.scaled(1000).page_bytes == 4 * (8 + 8)


def test_declared_bytes_make_whole_rows() -> None:
    groups = config(full(4, packing=2), state(4))
    specs = group_specs(groups, {"full": 4 * 41 + 3, "state": None})
    assert [spec.page_bytes for spec in specs] == [4 * 41, 8]
    assert [spec.rows for spec in specs] == [4, 1]
    assert Memory.of(groups, {"full": 4 * 40}, scale_down=2).groups[0].page_bytes == 4 * 16


def test_the_scale_is_the_smallest_that_fits() -> None:
    groups = config(full(4), pages=100)
    memory = Memory.of(groups, {"full": 4 * 1024})
    assert memory.fitting(groups, 100 * 4 * 1024).scale == 1
    assert memory.fitting(groups, 100 * 4 * 1024 - 1).scale == 2
    assert memory.fitting(groups, 100 * 4 * 64).scale == 16
    assert memory.fitting(groups, 1).scale == 128  # 8 bytes a row: no smaller


def test_layers_go_when_rows_are_as_small_as_they_get() -> None:
    spec = GroupSpec("full", 4, 2, (Field("keys", 64), Field("scales", 2)), layers=12, stacks=2)
    memory = Memory([spec], planar=True)
    scaled = [memory.scaled(factor).groups[0] for factor in (1, 8, 16, 32, 1024)]
    assert [one.layers for one in scaled] == [12, 12, 6, 3, 1]
    assert [field.row_bytes for field in scaled[1].fields] == [8, 2]
