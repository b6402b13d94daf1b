"""Where pages and rows lie: planes inside pages, pages inside LCM blocks."""

import numpy as np
from support.groups import config, full, state

from kvplan.backends.backend import Memory, fitting_scale
from kvplan.backends.layout import Field, GroupSpec, Layout, group_specs

KEYS_AND_VALUES = GroupSpec("full", rows=4, packing=3, fields=(Field("k", 16), Field("v", 8)))
STATE = GroupSpec("state", rows=1, packing=1, fields=(Field("state", 320),))


def test_a_block_is_as_large_as_the_largest_group_needs() -> None:
    assert KEYS_AND_VALUES.page_bytes == 4 * (16 + 8)
    layout = Layout([KEYS_AND_VALUES, STATE], blocks=5)
    assert layout.block_words * 8 == 320
    assert layout.bytes == 5 * 320
    assert [layout.pages(group) for group in (0, 1)] == [15, 5]


def test_page_ids_count_through_the_blocks_from_one() -> None:
    layout = Layout([KEYS_AND_VALUES, STATE], blocks=5)
    assert layout.page_at(0, np.array([1, 2, 3, 4])).tolist() == [0, 12, 24, 40]
    assert layout.page_at(1, np.array([1, 2])).tolist() == [0, 40]


def test_the_rows_of_each_field_lie_one_behind_the_other() -> None:
    layout = Layout([KEYS_AND_VALUES, STATE], blocks=5)
    keys, values = layout.rows_at(0, np.array([4, 4]), np.array([0, 3]))
    assert keys.tolist() == [40, 46]
    assert values.tolist() == [48, 51]


def test_no_two_rows_of_a_group_share_a_word() -> None:
    layout = Layout([KEYS_AND_VALUES], blocks=4, block_bytes=400)
    pages = np.repeat(np.arange(1, 13), 4)
    places = np.concatenate(layout.rows_at(0, pages, np.tile(np.arange(4), 12)))
    assert len(set(places.tolist())) == len(places) == 96
    assert places.max() < layout.words == 200


def test_scaling_down_stops_at_one_signature_a_row() -> None:
    assert KEYS_AND_VALUES.scaled(2).page_bytes == 4 * (8 + 8)
    assert KEYS_AND_VALUES.scaled(1000).page_bytes == 4 * (8 + 8)


def test_declared_bytes_make_whole_rows_of_whole_words() -> None:
    groups = config(full(4, packing=2), state(4))
    specs = group_specs(groups, {"full": 4 * 40 + 5, "state": None})
    assert [spec.page_bytes for spec in specs] == [4 * 40, 8]
    assert [spec.rows for spec in specs] == [4, 1]
    assert Memory.of(groups, {"full": 4 * 40}, scale_down=2).groups[0].page_bytes == 4 * 16


def test_the_scale_is_the_smallest_that_fits() -> None:
    groups = config(full(4), pages=100)
    sizes = {"full": 4 * 1024}
    assert fitting_scale(groups, sizes, 100 * 4 * 1024) == 1
    assert fitting_scale(groups, sizes, 100 * 4 * 1024 - 1) == 2
    assert fitting_scale(groups, sizes, 100 * 4 * 64) == 16
    assert fitting_scale(groups, sizes, 1) == 128  # 8 bytes a row: no smaller
