"""The arena: one allocation, zeroed and copied by page, marked by row."""

import numpy as np
import pytest

from kvplan.backends.allocator import allocator_report, find_max_blocks, largest
from kvplan.backends.arena import Arena
from kvplan.backends.errors import BackendError
from kvplan.backends.layout import Field, GroupSpec, Layout
from kvplan.backends.signatures import POISON
from kvplan.backends.torch_module import device_named, devices
from tests.backends.carrying import CarriedRun
from tests.support.scenario import load_recording

torch = pytest.importorskip("torch", reason="an arena needs the extra kvplan-toolkit[torch]")

CPU = torch.device("cpu")
GROUP = GroupSpec("full", rows=4, packing=3, fields=(Field("k", 16), Field("v", 8)))


def arena() -> Arena:
    return Arena(Layout([GROUP], blocks=5), CPU)


def test_fresh_memory_is_poisoned_and_zeroing_takes_whole_pages() -> None:
    one = arena()
    assert one.page(0, 4).tolist() == [[POISON] * 12]
    one.zero(0, [4, 15])
    assert one.page(0, 4).tolist() == one.page(0, 15).tolist() == [[0] * 12]
    assert int((one.words == 0).sum()) == 24


def test_a_mark_is_the_first_word_of_its_row_in_every_field() -> None:
    one = arena()
    pages, rows, marks = np.array([4, 4]), np.array([0, 3]), np.array([7, 9])
    one.write(0, pages, rows, marks)
    assert one.read(0, pages, rows).tolist() == [7, 9]
    for field in (0, 1):
        plane = one.field(0, field)
        assert plane[1, 0, 0, 0, :, 0].tolist() == [7, POISON, POISON, 9]
        assert plane.data_ptr() == one.words.data_ptr() + (0, 64)[field]


def test_a_mark_that_differs_in_any_field_is_found() -> None:
    one = arena()
    pages, rows, marks = np.array([1, 2, 3]), np.array([0, 1, 2]), np.array([5, 6, 7])
    one.write(0, pages, rows, marks)
    assert one.differing(0, pages, rows, marks) is None
    one.field(0, 1)[0, 0, 1, 0, 1, 0] = 8
    assert one.differing(0, pages, rows, marks) == (1, 8)


def test_memory_that_cannot_be_had_is_one_sentence() -> None:
    with pytest.raises(BackendError, match=r"8,796,093,022,208,000 bytes cannot be had on cpu"):
        Arena(Layout([GROUP], blocks=1000, block_bytes=1 << 43), CPU)


def test_a_run_stays_in_its_one_allocation() -> None:
    run = CarriedRun(load_recording("fused-full+full-retractdecode-s1603")["scenario"])
    before = run.backend.arena.words.data_ptr(), run.backend.arena.words.numel()
    for _ in run.rounds():
        pass
    assert (run.backend.arena.words.data_ptr(), run.backend.arena.words.numel()) == before
    assert before[1] * 8 == run.backend.arena.layout.bytes


def test_the_devices_there_are_are_named_where_one_is_not() -> None:
    assert devices()[0] == "cpu"
    with pytest.raises(BackendError, match=r"device 'cuda:99' is not there; "):
        device_named("cuda:99")


def test_the_largest_number_that_fits_is_found() -> None:
    for limit in (0, 1, 13, 100):
        assert largest(limit.__ge__, 100) == limit


def test_a_cpu_s_blocks_are_counted_in_what_the_machine_has_free() -> None:
    report = allocator_report(CPU)
    if report.device_free is None:
        pytest.skip("the system does not tell its free memory")
    assert report.allocated is None
    assert report.fragmentation is None
    block = report.device_free // 20
    found = find_max_blocks(block, CPU)
    assert 15 <= found <= 25
    assert find_max_blocks(block, CPU, reserve_bytes=10 * block) <= found - 8
    assert find_max_blocks(block, CPU, reserve_bytes=100 * block) == 0


def test_the_null_block_is_counted_among_those_that_fit() -> None:
    from kvplan.backends.fit import BlocksFit
    from kvplan.backends.report import fit_text

    def fit(found: int) -> BlocksFit:
        return BlocksFit("cpu", 8, 0, found, 60, allocator_report(CPU))

    assert [fit(found).fits for found in (60, 61)] == [False, True]
    assert (fit(0).usable, fit(61).usable) == (0, 60)
    assert "1 fewer than the 60 deployed and the null block" in " ".join(str(fit_text(fit(60))).split())
    assert "try         --pool-blocks 59" in str(fit_text(fit(60)))
